#include "transport/job/child_process.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "base/fail.hpp"
#include "base/quantity_text.hpp"
#include "transport/job/job_guard.hpp"

namespace slip::transport {
namespace {

constexpr int kNotRun = 127;  // exit status of a child whose program cannot be run; the parent reads the errno instead

std::vector<char*> pointers(const std::vector<std::string>& words) {
  std::vector<char*> result;
  result.reserve(words.size() + 1);
  for (const std::string& word : words) result.push_back(const_cast<char*>(word.c_str()));
  result.push_back(nullptr);
  return result;
}

std::string path_of(const std::vector<std::string>& environment) {
  constexpr std::string_view kName = "PATH=";
  for (const std::string& line : environment) {
    if (line.starts_with(kName)) return line.substr(kName.size());
  }
  return "/usr/local/bin:/usr/bin:/bin";
}

// Whether the child can run the file. It does so in `directory`, or, if that is empty, in that of this process.
bool can_run(const std::filesystem::path& directory, const std::string& file) {
  const std::filesystem::path path = directory / file;  // an absolute `file` replaces `directory`
  std::error_code error;
  return std::filesystem::is_regular_file(path, error) && ::access(path.c_str(), X_OK) == 0;
}

// The file of the program, searched in the PATH of the child's environment: execvpe() would search the PATH of this
// process. If it is not found, returns the name unchanged, so that execvpe() reports the error.
std::string file_of(const ChildProgram& child) {
  const std::string& program = child.command.front();
  if (program.find('/') != std::string::npos) return program;
  const std::string path = path_of(child.environment);
  for (const std::string_view folder : base::split(path, ":")) {
    std::string file = std::string(folder.empty() ? "." : folder) + "/" + program;
    if (can_run(child.directory, file)) return file;
  }
  return program;
}

// Everything that the child needs between fork and exec, where it must not allocate.
struct ChildSetup {
  const char* file;
  const char* directory;  // null: unchanged
  std::vector<char*> arguments, environment;
  int in, out, err;
  int failure;  // write end of a pipe: the child sends the errno if exec fails
  pid_t parent;
  sigset_t mask;
  const JobGuard* guard;
};

[[noreturn]] void report_failure(const ChildSetup& setup) {
  const int error = errno;
  static_cast<void>(!::write(setup.failure, &error, sizeof(error)));
  ::_exit(kNotRun);
}

// Makes `from` the standard descriptor `to` of the program. Only async-signal-safe calls.
void use_as(int from, int to, const ChildSetup& setup) {
  // dup2() of equal descriptors does nothing, and exec would close this one.
  const bool done = from == to ? ::fcntl(to, F_SETFD, 0) == 0 : ::dup2(from, to) >= 0;
  if (!done) report_failure(setup);
}

// Runs in the forked child: turns it into the program.
[[noreturn]] void exec_program(const ChildSetup& setup) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != setup.parent) ::_exit(kNotRun);  // the parent was killed before prctl()
  if (setup.guard) setup.guard->add(::getpid());
  use_as(setup.in, STDIN_FILENO, setup);
  if (setup.out >= 0) use_as(setup.out, STDOUT_FILENO, setup);
  if (setup.err >= 0) use_as(setup.err, STDERR_FILENO, setup);
  if (setup.directory && ::chdir(setup.directory) != 0) report_failure(setup);
  ::sigprocmask(SIG_SETMASK, &setup.mask, nullptr);
  ::execvpe(setup.file, setup.arguments.data(), setup.environment.data());
  report_failure(setup);
}

}  // namespace

StartedChild start_child(const ChildProgram& program, const std::string& name) {
  const std::string file = file_of(program);
  OwnedDescriptor nothing;
  if (program.in < 0) {
    nothing.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (nothing.number() < 0) base::fail_errno("cannot open /dev/null", errno);
  }
  Pipe failure = make_pipe();
  const ChildSetup setup{.file = file.c_str(),
                         .directory = program.directory.empty() ? nullptr : program.directory.c_str(),
                         .arguments = pointers(program.command),
                         .environment = pointers(program.environment),
                         .in = program.in >= 0 ? program.in : nothing.number(),
                         .out = program.out,
                         .err = program.err,
                         .failure = failure.write.number(),
                         .parent = ::getpid(),
                         .mask = program.mask,
                         .guard = program.guard};
  StartedChild child;
  child.pid = ::fork();
  if (child.pid == 0) exec_program(setup);
  if (child.pid < 0) base::fail(ErrorCode::kIo, {}, "cannot start {}: {}", name, std::strerror(errno));
  failure.write.reset();            // now only the child holds it, so that read() below ends
  ::setpgid(child.pid, child.pid);  // parent and child both do it: either may be first
  int error = 0;
  ssize_t got = 0;
  // If exec succeeds, it closes the pipe, and read() returns 0.
  while ((got = ::read(failure.read.number(), &error, sizeof(error))) < 0 && errno == EINTR) {}
  child.error = got == sizeof(error) ? error : 0;
  return child;
}

namespace {

// Signals that this process ignores (under nohup, or in the background of a shell) are not read from the signalfd. If
// they were blocked, the signalfd would report them although they are ignored. The ranks ignore them, too, so they
// would not end when the launcher passed such a signal on, and would have to be killed.
bool ignored(int number) {
  struct sigaction action {};
  return ::sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

JobSignals::JobSignals() {
  // If the parent of this process ignored SIGCHLD, the kernel would reap all children, and waitid() would not find
  // them.
  ::signal(SIGCHLD, SIG_DFL);
  sigset_t wanted;
  sigemptyset(&wanted);
  for (const int number : {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP}) {
    if (number == SIGCHLD || !ignored(number)) sigaddset(&wanted, number);
  }
  ::sigprocmask(SIG_BLOCK, &wanted, &before_);
  descriptor_.reset(::signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK));
  if (descriptor() < 0) base::fail_errno("cannot make a signalfd", errno);
}

JobSignals::~JobSignals() { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }

int JobSignals::next() const {
  signalfd_siginfo info{};
  return ::read(descriptor(), &info, sizeof(info)) == sizeof(info) ? static_cast<int>(info.ssi_signo) : 0;
}

}  // namespace slip::transport
