#include "nccl/group.hpp"

#include <algorithm>
#include <exception>
#include <map>
#include <memory>
#include <vector>

#include "base/thread.hpp"
#include "nccl/api.hpp"
#include "slip/group.hpp"

namespace slip::nccl {
namespace {

struct OpenGroup {
  int depth = 0;
  ncclResult_t error = ncclSuccess;
  std::vector<CallRequest> calls;  // keeps its memory from group to group
  std::vector<Job> jobs;
};

OpenGroup& open_group() { return base::thread_wide<OpenGroup>(); }

// Closes the handle of a communicator that could not be made, and sets the caller's variable to NULL.
void withdraw(const Job& job) {
  if (!job.out) return;
  job.target.close();
  *job.out = nullptr;
}

// Runs the body. If a blocking job fails, the handle of its new communicator is closed. If a non-blocking one fails,
// the caller keeps the handle, from which it reads the error.
Outcome run_body(const Job& job) {
  const KeepCurrentGpu keep;
  Outcome outcome;
  try {
    job.body();
  } catch (...) {
    outcome = outcome_of_exception();
  }
  if (outcome.result != ncclSuccess && job.blocking) withdraw(job);
  return outcome;
}

void end_in_background(const Job& job, const Outcome& outcome) {
  if (outcome.result != ncclSuccess) {
    if (job.out) job.target->fail(outcome);  // the new communicator does not exist
    static_cast<void>(report(job.function, job.target ? job.target.handle() : job.parent.handle(), outcome));
  }
  // An existing communicator only stores the error and stays usable: the program may still call ncclCommShrink on it.
  if (job.target) job.target->end_job(job.out ? Outcome() : outcome);
  if (job.parent) job.parent->end_job(job.target ? Outcome() : outcome);
}

void begin(const Job& job) {
  if (job.target) job.target->begin_job();
  if (job.parent) job.parent->begin_job();
}

// REQUIRES: begin().
void start_in_background(const std::shared_ptr<Job>& job) {
  try {
    base::Thread thread;
    thread.start("slip-nccl-job", [job] { end_in_background(*job, run_body(*job)); });
    thread.detach();
  } catch (const std::exception&) {  // no more threads: the communicator reports it
    end_in_background(*job, outcome_of_exception());
  }
}

// Runs all jobs, each in a thread, because they wait for each other.
ncclResult_t run_jobs(std::vector<Job>&& jobs) {
  std::vector<base::Thread> threads(jobs.size());
  std::vector<Outcome> outcomes(jobs.size());
  std::vector<std::shared_ptr<Job>> background(jobs.size());  // the non-blocking jobs; no allocation after begin()
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    if (!jobs[i].blocking) background[i] = std::make_shared<Job>(std::move(jobs[i]));
  }
  ncclResult_t result = ncclSuccess;
  // begin() for all jobs before the first one starts: if two jobs have one communicator, the first may fail before the
  // second begins, and begin_job() would erase its error.
  for (const std::shared_ptr<Job>& job : background) {
    if (job) begin(*job);
  }
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    if (!background[i]) {
      try {
        threads[i].start("slip-nccl-job", [&, i] { outcomes[i] = run_body(jobs[i]); });
      } catch (const std::exception&) {  // no more threads: the other jobs end at their deadlines
        outcomes[i] = outcome_of_exception();
        withdraw(jobs[i]);
      }
    } else {
      start_in_background(background[i]);
      result = ncclInProgress;
    }
  }
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    if (threads[i].started()) threads[i].join();
  }
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    if (outcomes[i].result == ncclSuccess) continue;
    const ncclComm_t about = jobs[i].parent   ? jobs[i].parent.handle()
                             : jobs[i].target ? jobs[i].target.handle()
                                              : nullptr;
    const ncclResult_t failed = report(jobs[i].function, about, outcomes[i]);
    if (result == ncclSuccess || result == ncclInProgress) result = failed;
  }
  return result;
}

// Stores the current exception as the last error of this communicator. REQUIRES: called in a catch block.
void keep_group_error(Comm& comm) noexcept {
  try {
    comm.keep_error("ncclGroupEnd: " + outcome_of_exception().text);
  } catch (const std::exception&) {  // no memory for the text
  }
}

// Waits for all communicators, also if one of them fails: the caller may free its buffers afterwards.
ncclResult_t finish_all(const std::vector<CallRequest>& calls) {
  if (uses_gpus()) return ncclSuccess;
  std::vector<Comm*> comms;
  std::exception_ptr error;
  ncclResult_t result = ncclSuccess;
  for (const CallRequest& call : calls) {
    if (std::find(comms.begin(), comms.end(), &*call.comm) != comms.end()) continue;
    comms.push_back(&*call.comm);
    try {
      if (call.comm->finish_calls() == ncclInProgress) result = ncclInProgress;
    } catch (...) {
      keep_group_error(*call.comm);
      if (!error) error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
  return result;
}

// For a call that was refused after others were issued. The other ranks would wait for it, so the communicators of the
// issued calls fail on all ranks. REQUIRES: called in a catch block.
void end_issued(const std::vector<CallRequest>& calls, std::size_t issued) noexcept {
  try {
    const Outcome outcome = outcome_of_exception();
    for (std::size_t i = 0; i < issued; ++i)
      calls[i].comm->communicator().fail(ErrorCode::kMismatch,
                                         "a later call of the group was refused: " + outcome.text);
    static_cast<void>(finish_all(calls));
  } catch (const std::exception&) {  // the caller reports the first error
  }
}

// A call that reads its factor from device memory waits for the earlier calls of its communicator. If this thread has
// several ranks, those earlier calls complete only when this thread has issued the same calls of its other ranks. So
// the first calls of all communicators are issued first, then the second ones, and so on. In each such round, calls
// that read no factor come first.
void order_by_rounds(std::vector<CallRequest>& calls) {
  if (std::none_of(calls.begin(), calls.end(), [](const CallRequest& call) { return call.device_factor; })) return;
  std::map<const Comm*, std::size_t> made;
  std::vector<std::pair<std::size_t, CallRequest>> ordered;
  for (CallRequest& call : calls) {
    const std::size_t round = made[&*call.comm]++;
    ordered.emplace_back(2 * round + (call.device_factor ? 1 : 0), std::move(call));
  }
  std::stable_sort(ordered.begin(), ordered.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (std::size_t i = 0; i < calls.size(); ++i) calls[i] = std::move(ordered[i].second);
}

void issue_all(std::vector<CallRequest>& calls) {
  order_by_rounds(calls);
  std::size_t issued = 0;
  Group messages;  // collects sends and receives; collectives are issued at once
  try {
    for (; issued < calls.size(); ++issued) issue(calls[issued]);
    messages.end();
  } catch (...) {
    messages.cancel();  // end_issued() makes their communicators fail
    for (const CallRequest& call : calls) keep_group_error(*call.comm);
    if (issued > 0) end_issued(calls, issued);
    throw;
  }
}

// Takes the calls, jobs and error out of the open group. So the group is empty for the next ncclGroupStart, even if
// this one fails.
struct Taken {
  explicit Taken(OpenGroup& group) : open(group) {
    std::swap(calls, group.calls);
    std::swap(jobs, group.jobs);
    error = std::exchange(group.error, ncclSuccess);
  }
  ~Taken() {
    calls.clear();
    std::swap(calls, open.calls);  // returns the memory
  }
  OpenGroup& open;
  std::vector<CallRequest> calls;
  std::vector<Job> jobs;
  ncclResult_t error;
};

OpenGroup& require_open() {
  OpenGroup& group = open_group();
  if (group.depth == 0) invalid_usage("this thread has no open group: call ncclGroupStart first");
  return group;
}

}  // namespace

void note_group_error(ncclResult_t result) noexcept {
  OpenGroup& group = open_group();
  if (group.depth > 0 && group.error == ncclSuccess) group.error = result;
}

ncclResult_t submit(CallRequest&& call) {
  OpenGroup& group = open_group();
  if (group.depth > 0) {
    group.calls.push_back(std::move(call));
    return ncclSuccess;
  }
  issue(call);
  return call.comm->finish_calls();
}

ncclResult_t submit(Job&& job) {
  OpenGroup& group = open_group();
  if (group.depth > 0) {
    group.jobs.push_back(std::move(job));
    return ncclSuccess;
  }
  if (!job.blocking) {
    const auto background = std::make_shared<Job>(std::move(job));
    begin(*background);
    start_in_background(background);
    return ncclInProgress;
  }
  const Outcome outcome = run_body(job);
  if (outcome.result != ncclSuccess) throw ApiError(outcome.result, outcome.text);
  return ncclSuccess;
}

}  // namespace slip::nccl

using namespace slip::nccl;

SLIP_NCCL_API(ncclResult_t, ncclGroupStart) {
  ++open_group().depth;
  return ncclSuccess;
}

SLIP_NCCL_API(ncclResult_t, ncclGroupEnd) {
  return run_api("ncclGroupEnd", nullptr, [] {
    OpenGroup& group = require_open();
    if (--group.depth > 0) return ncclSuccess;
    const KeepCurrentGpu keep;
    Taken taken(group);
    ncclResult_t result = taken.error;
    if (result != ncclSuccess) {  // reported by the call that failed
      for (const Job& job : taken.jobs) withdraw(job);
      return result;
    }
    if (!taken.jobs.empty()) result = run_jobs(std::move(taken.jobs));
    if (taken.calls.empty() || (result != ncclSuccess && result != ncclInProgress)) return result;
    issue_all(taken.calls);
    const ncclResult_t finished = finish_all(taken.calls);
    return result == ncclSuccess ? finished : result;
  });
}

SLIP_NCCL_API(ncclResult_t, ncclGroupSimulateEnd, ncclSimInfo_t* simInfo) {
  return run_api("ncclGroupSimulateEnd", nullptr, [&] {
    OpenGroup& group = require_open();
    if (--group.depth > 0) return ncclSuccess;
    Taken taken(group);
    for (const Job& job : taken.jobs) withdraw(job);
    if (taken.error != ncclSuccess) return taken.error;
    if (simInfo && (simInfo->magic != 0x74685283 || simInfo->size < sizeof(ncclSimInfo_t)))
      invalid_argument("simInfo has size {} and magic {:#x}: it was not made by NCCL_SIM_INFO_INITIALIZER",
                       simInfo->size, simInfo->magic);
    if (!taken.jobs.empty()) invalid_usage("a group that makes communicators cannot be simulated");
    double us = 0;
    for (const CallRequest& call : taken.calls) {  // the calls of one communicator; all communicators have the same
      if (call.comm.handle() == taken.calls.front().comm.handle()) us += estimated_us(call);
    }
    if (simInfo) simInfo->estimatedTime = static_cast<float>(us);
    return ncclSuccess;
  });
}
