#include "trainer/launcher/posix/output_relay.h"
#include "ops/common/file_descriptor.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <memory>

#include "trainer/launcher/posix/child_process.h"

namespace narrowcast::launcher {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Not std::string(count, 'x'): for a constant count, GCC 12 warns of wrong bounds.
std::string many(char letter, size_t count) {
  std::string text;
  text.resize(count, letter);
  return text;
}

TEST(LinePrefixer, GivesBackWholeLines) {
  LinePrefixer lines("[1]: ");
  EXPECT_EQ(lines.push("one\ntwo\nthr"), "[1]: one\n[1]: two\n");
  EXPECT_EQ(lines.push("ee"), "");
  EXPECT_EQ(lines.push("\n\n"), "[1]: three\n[1]: \n");
  EXPECT_EQ(lines.finish(), "");
}

TEST(LinePrefixer, FinishesAnUnfinishedLineOnce) {
  LinePrefixer lines("[1]: ");
  EXPECT_EQ(lines.push("no newline"), "");
  EXPECT_EQ(lines.finish(), "[1]: no newline\n");
  EXPECT_EQ(lines.finish(), "");
}

TEST(LinePrefixer, CutsALineThatWouldTakeAllMemory) {
  LinePrefixer lines(">");
  EXPECT_EQ(lines.push(many('x', LinePrefixer::kLongestLine + 3)).size(), LinePrefixer::kLongestLine + 2);
  EXPECT_EQ(lines.push("\n"), ">xxx\n");
}

// A relay between pipes; the test is the workers and the reader.
class OutputRelayTest : public ::testing::Test {
 protected:
  struct Worker {
    FileDescriptor out;
    FileDescriptor err;
  };

  Worker add_worker(int64_t rank) {
    Pipe out = pipe_between();
    Pipe err = pipe_between();
    const std::string prefix = rank == 0 ? "[0]: " : "[1]: ";
    relay->add({.rank = rank, .kind = OutputRelay::Kind::kOutput, .pipe = std::move(out.read_end), .prefix = prefix});
    relay->add({.rank = rank, .kind = OutputRelay::Kind::kError, .pipe = std::move(err.read_end), .prefix = prefix});
    return {std::move(out.write_end), std::move(err.write_end)};
  }

  static Pipe pipe_between() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
  }

  static FileDescriptor full_disk() { return FileDescriptor(open("/dev/full", O_WRONLY | O_CLOEXEC)); }

  static void say(const FileDescriptor& to, const std::string& text) {
    ASSERT_EQ(write(to.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }

  // Polls without waiting and handles, until nothing is ready. Returns false if a stream of the launcher was found
  // closed.
  bool turn() {
    for (bool open = true;;) {
      std::vector<pollfd> polls;
      relay->add_polls(polls);
      if (poll(polls.data(), polls.size(), 0) <= 0) {
        return open;
      }
      open = relay->handle(polls) && open;
    }
  }

  static std::string shown(const FileDescriptor& from) {
    std::string text(1 << 16, '\0');
    const ssize_t count = read(from.get(), text.data(), text.size());
    text.resize(static_cast<size_t>(std::max<ssize_t>(count, 0)));
    return text;
  }

  Pipe out = pipe_between();
  Pipe err = pipe_between();
  std::unique_ptr<OutputRelay> relay = std::make_unique<OutputRelay>(out.write_end.get(), err.write_end.get());
};

TEST_F(OutputRelayTest, NeverMixesLines) {
  const Worker zero = add_worker(0);
  const Worker one = add_worker(1);
  say(zero.out, "begin ");
  turn();
  say(one.out, "other\n");
  turn();
  say(zero.out, "end\n");
  turn();
  EXPECT_EQ(shown(out.read_end), "[1]: other\n[0]: begin end\n");
}

TEST_F(OutputRelayTest, KeepsOutputAndErrorApart) {
  const Worker worker = add_worker(0);
  say(worker.out, "result\n");
  say(worker.err, "warning\n");
  turn();
  EXPECT_EQ(shown(out.read_end), "[0]: result\n");
  EXPECT_EQ(shown(err.read_end), "[0]: warning\n");
  EXPECT_THAT(relay->last_error_lines(0), ElementsAre("warning"));
  EXPECT_THAT(relay->last_error_lines(1), IsEmpty());
}

TEST_F(OutputRelayTest, RemembersAProgressBarThatNeverEnds) {
  Worker worker = add_worker(0);
  say(worker.err, "begin\n10%\r20%\r");
  turn();
  EXPECT_THAT(relay->last_error_lines(0), ElementsAre("begin", "20%"));
  EXPECT_EQ(shown(err.read_end), "[0]: begin\n");
  worker.err.close();
  turn();
  EXPECT_EQ(shown(err.read_end), "[0]: 10%\r20%\r\n");
}

TEST_F(OutputRelayTest, ShowsAnUnfinishedLineWhenItsWriterEnds) {
  Worker worker = add_worker(0);
  say(worker.out, "no newline");
  turn();
  EXPECT_EQ(shown(out.read_end), "");
  worker.out.close();
  turn();
  EXPECT_EQ(shown(out.read_end), "[0]: no newline\n");
}

TEST_F(OutputRelayTest, FinishesWithoutWaitingForAWriterThatStays) {
  const Worker worker = add_worker(0);
  say(worker.out, "one\ntwo");
  relay->finish(milliseconds(0));
  EXPECT_EQ(shown(out.read_end), "[0]: one\n[0]: two\n");
}

TEST_F(OutputRelayTest, StopsReadingWhileItsReaderDoes) {
  const Worker worker = add_worker(0);
  std::string line = many('x', 1024);
  line.back() = '\n';
  int64_t written = 0;
  // Without a reader the pipes and the relay fill up, and then the worker's writes fail.
  while (write(worker.out.get(), line.data(), line.size()) == static_cast<ssize_t>(line.size())) {
    ++written;
    turn();
    ASSERT_LT(written, 1 << 14) << "the relay takes any amount";
  }
  int64_t read_lines = 0;
  for (std::string text = shown(out.read_end); !text.empty(); text = shown(out.read_end)) {
    read_lines += std::count(text.begin(), text.end(), '\n');
    turn();
  }
  EXPECT_EQ(read_lines, written);  // nothing is lost
}

TEST_F(OutputRelayTest, CopiesToAFileAsWritten) {
  Pipe copy = pipe_between();
  Pipe worker = pipe_between();
  relay->add({.rank = 0, .pipe = std::move(worker.read_end), .copy = std::move(copy.write_end), .prefix = "[0]: "});
  say(worker.write_end, "one\ntw");
  turn();
  EXPECT_EQ(shown(copy.read_end), "one\ntw");
  EXPECT_EQ(shown(out.read_end), "[0]: one\n");
}

TEST_F(OutputRelayTest, HidesButRemembers) {
  Pipe worker = pipe_between();
  relay->add({.rank = 3, .kind = OutputRelay::Kind::kError, .shown = false, .pipe = std::move(worker.read_end)});
  say(worker.write_end, "hidden\n");
  turn();
  EXPECT_EQ(shown(err.read_end), "");
  EXPECT_THAT(relay->last_error_lines(3), ElementsAre("hidden"));
  relay->forget();
  EXPECT_THAT(relay->last_error_lines(3), IsEmpty());
}

TEST_F(OutputRelayTest, SaysOnceThatAFileIsFullAndGoesOn) {
  FileDescriptor full = full_disk();
  Pipe worker = pipe_between();
  relay->add({.rank = 0, .path = "run/log", .pipe = std::move(worker.read_end), .copy = std::move(full)});
  say(worker.write_end, "one\n");
  turn();
  say(worker.write_end, "two\n");
  turn();
  EXPECT_EQ(shown(err.read_end), "narrowcast-run: run/log: ends here: No space left on device\n");
  EXPECT_EQ(shown(out.read_end), "one\ntwo\n");
}

// If one stream of the launcher is full, the other shows a message and the job continues.
TEST_F(OutputRelayTest, SaysOnceThatItsOwnStreamIsFullAndGoesOn) {
  const FileDescriptor full = full_disk();
  relay = std::make_unique<OutputRelay>(full.get(), err.write_end.get());
  const Worker worker = add_worker(0);
  for (const char* const line : {"one\n", "two\n"}) {
    say(worker.out, line);
    EXPECT_TRUE(turn());
  }
  say(worker.err, "still here\n");
  turn();
  EXPECT_EQ(shown(err.read_end),
            "narrowcast-run: standard output: ends here: No space left on device\n[0]: still here\n");
}

TEST_F(OutputRelayTest, SaysOnStandardOutputThatStandardErrorIsFull) {
  const FileDescriptor full = full_disk();
  relay = std::make_unique<OutputRelay>(out.write_end.get(), full.get());
  const Worker worker = add_worker(0);
  say(worker.err, "why\n");
  relay->finish(milliseconds(0));
  EXPECT_EQ(shown(out.read_end), "narrowcast-run: standard error: ends here: No space left on device\n");
  EXPECT_THAT(relay->last_error_lines(0), ElementsAre("why"));
}

TEST_F(OutputRelayTest, SaysOnStandardOutputThatAFileIsFullOnceStandardErrorIs) {
  const FileDescriptor full = full_disk();
  relay = std::make_unique<OutputRelay>(out.write_end.get(), full.get());
  const Worker worker = add_worker(0);
  say(worker.err, "why\n");
  turn();
  FileDescriptor copy = full_disk();
  Pipe other = pipe_between();
  relay->add({.rank = 1, .path = "run/log", .pipe = std::move(other.read_end), .copy = std::move(copy)});
  say(other.write_end, "one\n");
  turn();
  EXPECT_EQ(shown(out.read_end),
            "narrowcast-run: standard error: ends here: No space left on device\n"
            "narrowcast-run: run/log: ends here: No space left on device\none\n");
}

TEST_F(OutputRelayTest, GoesOnWhenAllItsStreamsAreFull) {
  const FileDescriptor full = full_disk();
  relay = std::make_unique<OutputRelay>(full.get(), full.get());
  const Worker worker = add_worker(0);
  say(worker.out, "one\n");
  say(worker.err, "two\n");
  EXPECT_TRUE(turn());
  relay->finish(milliseconds(0));
}

TEST_F(OutputRelayTest, TellsOnceThatItsOwnStreamWasClosed) {
  const auto before = std::signal(SIGPIPE, SIG_IGN);
  const Worker worker = add_worker(0);
  out.read_end.close();
  say(worker.out, "one\n");
  EXPECT_FALSE(turn());
  say(worker.out, "two\n");
  say(worker.err, "still here\n");
  EXPECT_TRUE(turn());
  EXPECT_EQ(shown(err.read_end), "[0]: still here\n");
  std::signal(SIGPIPE, before);
}

}  // namespace
}  // namespace narrowcast::launcher
