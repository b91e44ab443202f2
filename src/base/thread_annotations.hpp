// Macros for clang's thread-safety analysis (-Wthread-safety). They say which lock guards a member and which lock a
// function needs; clang then reports every access without that lock. Other compilers ignore them.
#pragma once

#if defined(__clang__)
#define SLIP_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define SLIP_THREAD_ANNOTATION(x)
#endif

// On types: a lock, and an object that holds a lock from its construction to its destruction.
#define SLIP_CAPABILITY(name) SLIP_THREAD_ANNOTATION(capability(name))
#define SLIP_SCOPED_CAPABILITY SLIP_THREAD_ANNOTATION(scoped_lockable)

// On members: the lock that must be held to use the member, or the object it points to.
#define SLIP_GUARDED_BY(lock) SLIP_THREAD_ANNOTATION(guarded_by(lock))
#define SLIP_PT_GUARDED_BY(lock) SLIP_THREAD_ANNOTATION(pt_guarded_by(lock))

// On functions: the caller holds the lock; must not hold it; the function takes it; releases it; takes it if it returns
// the given value.
#define SLIP_REQUIRES(...) SLIP_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define SLIP_EXCLUDES(...) SLIP_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))
#define SLIP_ACQUIRE(...) SLIP_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define SLIP_RELEASE(...) SLIP_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
#define SLIP_TRY_ACQUIRE(...) SLIP_THREAD_ANNOTATION(try_acquire_capability(__VA_ARGS__))

// The function is not analysed. A comment beside it says why it is correct.
#define SLIP_NO_THREAD_SAFETY_ANALYSIS SLIP_THREAD_ANNOTATION(no_thread_safety_analysis)
