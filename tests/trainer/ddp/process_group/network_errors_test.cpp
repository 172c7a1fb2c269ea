#include <narrowcast/network_errors.h>

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/exception.h>
#include <stdexcept>
#include <string>
#include <thread>

#include "tests/support/error_message.h"

// Replaces Gloo's exceptions, which are recognised by their namespace.
namespace gloo {
struct FakeIoException : std::runtime_error {
  using std::runtime_error::runtime_error;
};
}  // namespace gloo

namespace narrowcast {
namespace {

TEST(CurrentStepTest, IsTheOneThatBeganLast) {
  EXPECT_EQ(describe_current_step(3), "is not in a collective");
  {
    const StepScope outer(3, "backward pass");
    EXPECT_EQ(describe_current_step(3), "has been in backward pass for 0 s");
    {
      const StepScope inner(3, "all-reduce");
      EXPECT_EQ(describe_current_step(3), "has been in all-reduce for 0 s");
    }
    EXPECT_EQ(describe_current_step(3), "has been in backward pass for 0 s");
  }
  EXPECT_EQ(describe_current_step(3), "is not in a collective");
}

TEST(CurrentStepTest, BelongsToARankNotToAThread) {
  const StepScope step(4, "backward pass");
  std::thread([] { EXPECT_EQ(describe_current_step(4), "has been in backward pass for 0 s"); }).join();
  EXPECT_EQ(describe_current_step(3), "is not in a collective");
  EXPECT_EQ(describe_current_step(5), "is not in a collective");
}

template <class Error>
std::string message_for(const Error& thrown) {
  return testing::error_message<c10::DistBackendError>(
      [&] { with_network_errors(3, "all-reduce", [&] { throw thrown; }); });
}

c10::SourceLocation here() { return {__func__, __FILE__, static_cast<uint32_t>(__LINE__)}; }

TEST(NetworkErrorsTest, ReturnsWhatTheBodyReturns) {
  int value = 1;
  EXPECT_EQ(&with_network_errors(0, "step", [&]() -> int& { return value; }), &value);
}

TEST(NetworkErrorsTest, TranslatesGlooErrors) {
  EXPECT_EQ(message_for(gloo::FakeIoException("[/src/gloo/pair.cc:534] Connection closed by peer [127.0.0.1]:5")),
            "rank 3: all-reduce failed: Connection closed by peer [127.0.0.1]:5");
}

// LibTorch 2.11 throws it in the place of Gloo's exception if a rank is lost while others connect to it.
TEST(NetworkErrorsTest, TranslatesTheErrorOfRanksThatConnect) {
  const auto message = [](const std::string& reason) {
    return message_for(c10::Error(here(), "Gloo connectFullMesh failed with [/gloo/pair.cc:547] " + reason));
  };
  EXPECT_EQ(message("Connection closed by peer [10.0.0.3]:5"),
            "rank 3: all-reduce failed: Connection closed by peer [10.0.0.3]:5");
  // The rank that refuses has ended, so this is no time-out.
  const std::string refused = message("timed out connecting: SO_ERROR: Connection refused, remote=[10.0.0.2]:592");
  EXPECT_EQ(refused, "rank 3: all-reduce failed: cannot connect: SO_ERROR: Connection refused, remote=[10.0.0.2]:592");
  EXPECT_FALSE(is_time_out(c10::DistBackendError(here(), refused)));
  EXPECT_TRUE(
      is_time_out(c10::DistBackendError(here(), message("timed out connecting: SO_ERROR: Connection timed out"))));
}

TEST(NetworkErrorsTest, TranslatesEveryDistributedErrorOfLibTorch) {
  EXPECT_EQ(message_for(c10::DistNetworkError(here(), "no route\nmore")), "rank 3: all-reduce failed: no route");
  EXPECT_EQ(message_for(c10::DistStoreError(here(), "gone")), "rank 3: all-reduce failed: gone");
  EXPECT_EQ(message_for(c10d::TimeoutError(here(), "slow")), "rank 3: all-reduce failed: slow");
}

TEST(NetworkErrorsTest, KeepsWhatAlreadyNamesARank) {
  EXPECT_EQ(message_for(c10::DistBackendError(here(), "rank 1: sending bucket 2 failed: x")),
            "rank 1: sending bucket 2 failed: x");
}

TEST(NetworkErrorsTest, LetsOtherErrorsPass) {
  EXPECT_THROW(with_network_errors(0, "step", [] { throw std::runtime_error("a bug"); }), std::runtime_error);
  EXPECT_THROW(with_network_errors(0, "step", [] { TORCH_CHECK_VALUE(false, "wrong"); }), c10::ValueError);
}

}  // namespace
}  // namespace narrowcast
