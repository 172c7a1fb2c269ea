#include "trainer/base/program/exit_code.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <new>
#include <stdexcept>

#include <narrowcast/errors.h>
#include "trainer/base/files/printable.h"
#include "trainer/base/open_files.h"
#include "trainer/base/program/process_setup.h"

namespace narrowcast::program {
namespace {

using ::testing::EndsWith;
using ::testing::StartsWith;

// What run_program makes of a body that throws: its exit code and standard error.
std::pair<int, std::string> outcome(const std::function<int()>& body) {
  ::testing::internal::CaptureStderr();
  const int code = run_program("prog", body);
  return {code, ::testing::internal::GetCapturedStderr()};
}

TEST(ExitCode, IsTheBodysOwn) {
  EXPECT_EQ(outcome([] { return 7; }), std::make_pair(7, std::string()));
}

TEST(ExitCode, NamesTheClassOfTheError) {
  EXPECT_EQ(outcome([]() -> int { TORCH_CHECK_VALUE(false, "steps: -1"); }),
            std::make_pair(int{kWrongUse}, std::string("prog: steps: -1\n")));
  EXPECT_EQ(outcome([]() -> int { TORCH_CHECK_TYPE(false, "dtype"); }).first, kWrongUse);
  EXPECT_EQ(outcome([]() -> int { NARROWCAST_CHECK_INPUT(false, "f: byte ", 3); }),
            std::make_pair(int{kCorruptInput}, std::string("prog: f: byte 3\n")));
  EXPECT_EQ(outcome([]() -> int { NARROWCAST_CHECK_OUTPUT(false, "disk full"); }),
            std::make_pair(int{kOutputFailed}, std::string("prog: disk full\n")));
  EXPECT_EQ(outcome([]() -> int { TORCH_CHECK_WITH(DistBackendError, false, "rank 1"); }).first, kPeerFailed);
  EXPECT_EQ(outcome([]() -> int { TORCH_CHECK(false, "bug"); }).first, kInternalError);
  EXPECT_EQ(outcome([]() -> int { throw std::runtime_error("odd"); }).first, kInternalError);
}

TEST(ExitCode, APathThatIsNotThereIsNoBug) {
  const auto [code, line] =
      outcome([]() -> int { return std::filesystem::read_symlink("/no/such/link").empty() ? 0 : 1; });
  EXPECT_EQ(code, kWrongUse);
  EXPECT_THAT(line, StartsWith("prog: filesystem error: "));  // Its words differ between versions of the library.
  EXPECT_THAT(line, EndsWith(": No such file or directory [/no/such/link]\n"));
}

TEST(ExitCode, NamesWhatTheSystemAllowsTooLittleOf) {
  EXPECT_EQ(outcome([]() -> int { throw std::bad_alloc(); }),
            std::make_pair(int{kWrongUse}, std::string("prog: not enough memory (std::bad_alloc)\n")));
  const std::string limit =
      " (RLIMIT_NOFILE: at most " + std::to_string(network::open_file_limit()) + " files may be open)\n";
  // Whatever class a library chose for it.
  EXPECT_EQ(outcome([]() -> int { TORCH_CHECK_WITH(DistNetworkError, false, "socket: ", std::strerror(EMFILE)); }),
            std::make_pair(int{kWrongUse}, "prog: socket: Too many open files" + limit));
  EXPECT_EQ(outcome([]() -> int { TORCH_CHECK(false, "pipe2: ", std::strerror(EMFILE)); }),
            std::make_pair(int{kWrongUse}, "prog: pipe2: Too many open files" + limit));
}

TEST(ExitCode, NamesTheMemoryThatLibTorchLacks) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer ends a program that asks for so much";
#endif
  // More than any machine has addresses for.
  const auto [code, line] = outcome([] { return static_cast<int>(at::empty({int64_t{1} << 60}, at::kByte).numel()); });
  EXPECT_EQ(code, kWrongUse);
  EXPECT_THAT(line, StartsWith("prog: not enough memory: DefaultCPUAllocator: can't allocate memory: "));
}

TEST(ExitCode, BlamesItsOwnLimitForNothingElse) {
  EXPECT_EQ(outcome([]() -> int { TORCH_CHECK(false, "pipe2: ", std::strerror(ENFILE)); }),
            std::make_pair(int{kWrongUse}, std::string("prog: pipe2: Too many open files in system\n")));
  // Ranks agree on such a text: all of them have the same code and line, whoever it happened to.
  for (const std::string beginning : {"", "checkpoint_dir runs: "}) {
    const std::string text = beginning + "rank 1: runs/step-5: cannot be written: " + std::strerror(EMFILE);
    EXPECT_EQ(outcome([&]() -> int { TORCH_CHECK_VALUE(false, text); }),
              std::make_pair(int{kWrongUse}, "prog: " + text + "\n"));
    EXPECT_EQ(outcome([&]() -> int { NARROWCAST_CHECK_OUTPUT(false, text); }),
              std::make_pair(int{kWrongUse}, "prog: " + text + "\n"));
  }
}

TEST(ExitCode, NamesItsOwnLimitWhereTheNetworkRanIntoIt) {
  const auto [code, line] = outcome([]() -> int {
    TORCH_CHECK_WITH(DistBackendError, false, "rank 1: connecting to all ranks failed: ", std::strerror(EMFILE));
  });
  EXPECT_EQ(code, kWrongUse);
  EXPECT_THAT(line, EndsWith(" files may be open)\n"));
}

TEST(ExitCode, ErrorsAreOneLine) {
  EXPECT_EQ(outcome([]() -> int { throw std::runtime_error("first\nsecond"); }).second, "prog: first\n");
}

TEST(ExitCode, ErrorsAreTextThatATerminalOnlyShows) {
  Failure told;
  ::testing::internal::CaptureStderr();
  run_program(
      "prog", []() -> int { TORCH_CHECK_VALUE(false, "option \x1b[2J\xff"); },
      [&](const Failure& failure) { told = failure; });
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "prog: option \\x1b[2J\\xff\n");
  EXPECT_EQ(told.message, "option \\x1b[2J\\xff");
}

TEST(ExitCode, ErrorsAreBounded) {
  const std::string text =
      outcome([]() -> int { TORCH_CHECK_VALUE(false, "f.pt: ", std::string(1'000'000, 'x'), " is no option"); }).second;
  EXPECT_LE(text.size(), std::string("prog: \n").size() + kLongestMessage);
  EXPECT_EQ(text.substr(0, 12), "prog: f.pt: ");
  EXPECT_EQ(text.substr(text.size() - 14), " is no option\n");
}

}  // namespace
}  // namespace narrowcast::program
