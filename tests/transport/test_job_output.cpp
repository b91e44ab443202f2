// The output of ranks on other hosts, which the launcher writes to its own standard output and error.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "transport/job/job_guard.hpp"
#include "transport/job/job_output.hpp"

namespace slip::test::test_job_output {
namespace {

// The standard output and error of this process go to one pipe of two pages, from construction to destruction.
class BothInOnePipe {
 public:
  BothInOnePipe() : pipe_(transport::make_pipe()), out_(::dup(STDOUT_FILENO)), err_(::dup(STDERR_FILENO)) {
    ::fcntl(pipe_.write.number(), F_SETPIPE_SZ, 2 * 4096);
    ::fcntl(pipe_.read.number(), F_SETFL, O_NONBLOCK);
    ::dup2(pipe_.write.number(), STDOUT_FILENO);
    ::dup2(pipe_.write.number(), STDERR_FILENO);
  }
  ~BothInOnePipe() {
    ::dup2(out_.number(), STDOUT_FILENO);
    ::dup2(err_.number(), STDERR_FILENO);
  }
  std::string read() const {  // all that is in the pipe
    std::string text;
    char bytes[4096];
    for (ssize_t count = 0; (count = ::read(pipe_.read.number(), bytes, sizeof(bytes))) > 0;)
      text.append(bytes, static_cast<std::size_t>(count));
    return text;
  }

 private:
  transport::Pipe pipe_;
  transport::OwnedDescriptor out_, err_;
};

// A rank writes a part of a line to its standard error, as a progress bar does. Then the reader of the output is slow,
// so that a long line on the standard output is written only in part when more of the progress bar arrives. Each of the
// two streams has an unfinished line then, and neither may wait for the other for ever.
TEST(JobOutputs, TwoUnfinishedLinesDoNotBlockEachOther) {
  const std::string line(20'000, 'x');
  std::string text;
  bool is_empty = false;
  {
    std::fflush(stdout);
    const BothInOnePipe both;
    transport::JobOutput output;
    output.add(0, STDERR_FILENO, "10 %", {});
    output.flush();
    output.add(1, STDOUT_FILENO, line + "\n", {});
    output.flush();
    output.add(0, STDERR_FILENO, " 20 %\n", {});
    for (int round = 0; round < 100 && !output.is_empty(); ++round) {
      text += both.read();
      output.flush();
    }
    text += both.read();
    is_empty = output.is_empty();
  }
  EXPECT_TRUE(is_empty);
  EXPECT_EQ(text, "10 %" + line + "\n 20 %\n");  // no text of one stream inside of a line of the other one
}

}  // namespace
}  // namespace slip::test::test_job_output
