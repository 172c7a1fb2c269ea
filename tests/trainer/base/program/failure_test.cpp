#include "trainer/base/program/failure.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <new>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>

#include <narrowcast/errors.h>
#include "ops/common/text.h"
#include "tests/support/temporary_folder.h"
#include "trainer/base/process/process_limits.h"

namespace narrowcast::program {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// The exit code and standard error of run_program with this body.
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

// A death test's process runs the body by itself.
TEST(ReportFailure, IsAsForTheBody) {
  const testing::TemporaryFolder folder;
  const std::string file = folder / "error.json";
  const auto report = [&] {
    return report_failure("prog", {kPeerFailed, "rank 1 is\x01 lost\nmore"}, error_file_writer(file));
  };
  EXPECT_EXIT(run_program("prog", [&]() -> int { std::_Exit(report()); }), ::testing::ExitedWithCode(kPeerFailed),
              "^prog: rank 1 is.x01 lost\n$");
  EXPECT_EQ(read_error_file(file).message, "rank 1 is\\x01 lost");
}

TEST(ReportFailure, ComesAfterNoOtherFailure) {
  EXPECT_EXIT(
      {
        const int code = run_program("prog", []() -> int { throw std::runtime_error("odd"); });
        std::promise<void> begun;
        std::thread([&] {
          begun.set_value();
          report_failure("prog", {kPeerFailed, "late"});
          std::_Exit(kSuccess);
        }).detach();
        begun.get_future().wait();
        std::this_thread::sleep_for(std::chrono::milliseconds(200));  // Nothing may happen in this time.
        std::_Exit(code);
      },
      ::testing::ExitedWithCode(kInternalError), "^prog: odd\n$");
}

TEST(ExitCode, APathThatIsNotThereIsNoBug) {
  const auto [code, line] =
      outcome([]() -> int { return std::filesystem::read_symlink("/no/such/link").empty() ? 0 : 1; });
  EXPECT_EQ(code, kWrongUse);
  EXPECT_THAT(line, StartsWith("prog: filesystem error: "));  // The rest differs between versions of the library.
  EXPECT_THAT(line, EndsWith(": No such file or directory [/no/such/link]\n"));
}

TEST(ExitCode, NamesWhatTheSystemAllowsTooLittleOf) {
  EXPECT_EQ(outcome([]() -> int { throw std::bad_alloc(); }),
            std::make_pair(int{kWrongUse}, std::string("prog: not enough memory (std::bad_alloc)\n")));
  const std::string limit =
      " (RLIMIT_NOFILE: at most " + std::to_string(network::open_file_limit()) + " files may be open)\n";
  // The class of the library's exception does not matter.
  EXPECT_EQ(outcome([]() -> int { TORCH_CHECK_WITH(DistNetworkError, false, "socket: ", std::strerror(EMFILE)); }),
            std::make_pair(int{kWrongUse}, "prog: socket: Too many open files" + limit));
  EXPECT_EQ(outcome([]() -> int { TORCH_CHECK(false, "pipe2: ", std::strerror(EMFILE)); }),
            std::make_pair(int{kWrongUse}, "prog: pipe2: Too many open files" + limit));
}

TEST(ExitCode, NamesTheMemoryThatLibTorchLacks) {
  // More bytes than any machine has addresses for.
  const auto [code, line] = outcome([] { return static_cast<int>(at::empty({int64_t{1} << 60}, at::kByte).numel()); });
  EXPECT_EQ(code, kWrongUse);
  // AddressSanitizer prints a line about it before.
  EXPECT_THAT(line, HasSubstr("prog: not enough memory: DefaultCPUAllocator: can't allocate memory: "));
}

TEST(ExitCode, BlamesItsOwnLimitForNothingElse) {
  EXPECT_EQ(outcome([]() -> int { TORCH_CHECK(false, "pipe2: ", std::strerror(ENFILE)); }),
            std::make_pair(int{kWrongUse}, std::string("prog: pipe2: Too many open files in system\n")));
  // Ranks agree on such a text: all of them have the same code and line, whichever rank failed.
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

int64_t seconds_now() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

class WrittenFailureTest : public ::testing::Test {
 protected:
  // The file's object "message", after a program failed with `failure`.
  nlohmann::json written(const Failure& failure) {
    error_file_writer(file)(failure);
    return nlohmann::json::parse(std::ifstream(file)).at("message");
  }

  const testing::TemporaryFolder folder;
  const std::string file = folder / "error.json";
};

// A wrong flag stays wrong after a restart; memory, files and peers may be available again.
TEST_F(WrittenFailureTest, WrongUseIsFinalAndWantOfResourcesIsNot) {
  const auto is_final_after = [&](const std::function<int()>& body) {
    ::testing::internal::CaptureStderr();
    run_program("prog", body, error_file_writer(file));
    ::testing::internal::GetCapturedStderr();
    return read_error_file(file).is_final;
  };
  EXPECT_TRUE(is_final_after([]() -> int { TORCH_CHECK_VALUE(false, "--steps=x: is no number"); }));
  EXPECT_TRUE(is_final_after([]() -> int { TORCH_CHECK_TYPE(false, "it is no tensor"); }));
  EXPECT_FALSE(is_final_after([]() -> int { throw std::bad_alloc(); }));
  EXPECT_FALSE(is_final_after([]() -> int { TORCH_CHECK_VALUE(false, "f: ", std::strerror(EMFILE)); }));
  EXPECT_FALSE(is_final_after([]() -> int { TORCH_CHECK_WITH(DistBackendError, false, "rank 1: lost"); }));
}

TEST_F(WrittenFailureTest, HoldsWhyAProgramFailed) {
  const int64_t before = seconds_now();
  const nlohmann::json message = written({kCorruptInput, "f.txt: \"byte\" 3 \xff"});
  EXPECT_EQ(message.at("message"), "f.txt: \"byte\" 3 \xEF\xBF\xBD");
  const int64_t time = std::stoll(message.at("extraInfo").at("timestamp").get<std::string>());
  EXPECT_GE(time, before);
  EXPECT_LE(time, seconds_now());
}

TEST_F(WrittenFailureTest, ALostPeerIsToldLaterThanItsDeath) {
  const int64_t before = seconds_now();
  const nlohmann::json message = written({kPeerFailed, "rank 0: peer lost"});
  EXPECT_GE(std::stoll(message.at("extraInfo").at("timestamp").get<std::string>()), before + 2);
}

TEST_F(WrittenFailureTest, NowhereToWriteIsNoError) {
  error_file_writer("")({kWrongUse, "x"});
  error_file_writer(folder / "no/such/folder/error.json")({kWrongUse, "x"});
  EXPECT_EQ(folder.entries(), 0);
}

TEST_F(WrittenFailureTest, IsWrittenByAFailingProgramOnly) {
  const auto writer = error_file_writer(file);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(run_program(
                "prog", [] { return 1; }, writer),
            1);
  EXPECT_EQ(folder.entries(), 0);
  EXPECT_EQ(run_program(
                "prog", []() -> int { throw std::runtime_error("odd"); }, writer),
            kInternalError);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "prog: odd\n");
  EXPECT_EQ(nlohmann::json::parse(std::ifstream(file)).at("message").at("message"), "odd");
}

}  // namespace

}  // namespace narrowcast::program
