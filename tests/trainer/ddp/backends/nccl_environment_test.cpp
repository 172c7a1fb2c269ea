#include "trainer/ddp/backends/nccl_environment.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "tests/support/error_message.h"

namespace narrowcast::nccl {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

TEST(NcclEnvironment, RanksWithGpusOfTheirOwnAreOnTheirHost) {
  const auto variables = environment_for({.rank = 1, .gpus = {"host 01:00", "host 02:00", "other 01:00"}});
  EXPECT_THAT(variables, AllOf(Not(Contains(Key("NCCL_HOSTID"))), Not(Contains(Key("NCCL_NET"))),
                               Not(Contains(Key("NCCL_SOCKET_IFNAME")))));
}

// Includes the rank that shares no GPU: NCCL takes one kind of network for all.
TEST(NcclEnvironment, RanksThatShareAGpuAreHostsOfTheirOwn) {
  for (const int64_t rank : {0, 1, 2}) {
    EXPECT_THAT(environment_for({.rank = rank, .gpus = {"host 01:00", "host 02:00", "host 01:00"}}),
                AllOf(Contains(Pair("NCCL_HOSTID", "narrowcast-rank-" + std::to_string(rank))),
                      Contains(Pair("NCCL_NET", "Socket"))));
  }
}

TEST(NcclEnvironment, NamesTheInterfaceExactly) {
  EXPECT_THAT(environment_for({.interface = "lo"}), Contains(Pair("NCCL_SOCKET_IFNAME", "=lo")));
}

TEST(NcclEnvironment, LibTorchOnlyBreaksOffWhatFails) {
  EXPECT_THAT(environment_for({}), Contains(Pair("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2")));
}

TEST(NcclErrorHandling, IsRefusedIfItWouldEndTheProcessOrNothing) {
  const char* const name = "TORCH_NCCL_ASYNC_ERROR_HANDLING";
  EXPECT_NO_THROW(check_error_handling({}));
  EXPECT_NO_THROW(check_error_handling({{name, ""}}));
  EXPECT_NO_THROW(check_error_handling({{name, "2"}}));
  EXPECT_NO_THROW(check_error_handling({{name, "1"}, {"TORCHELASTIC_RUN_ID", "none"}})) << "torchrun's own";
  EXPECT_EQ(testing::error_message<c10::ValueError>([&] {
              check_error_handling({{name, "1"}});
            }),
            "TORCH_NCCL_ASYNC_ERROR_HANDLING='1': LibTorch would end this process by a signal, or not at all, when "
            "another rank is lost; unset it, or set it to 2");
  for (const char* const value : {"0", "3", "yes"}) {
    EXPECT_THROW(check_error_handling({{name, value}, {"TORCHELASTIC_RUN_ID", "none"}}), c10::ValueError) << value;
  }
}

// The value was checked before, and torchrun's value is not set by the user.
TEST(NcclErrorHandling, IsSetAlsoWhereTorchrunHasSetIt) {
  ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1", 1);
  set_where_missing(environment_for({}));
  EXPECT_STREQ(std::getenv("TORCH_NCCL_ASYNC_ERROR_HANDLING"), "2");
  ::unsetenv("TORCH_NCCL_ASYNC_ERROR_HANDLING");
}

TEST(NcclGpu, IsNamedIfItIsTooOld) {
  EXPECT_EQ(testing::error_message<c10::ValueError>(
                [] { check_capability({.number = 1, .name = "Tesla T4", .major = 7, .minor = 5}); }),
            "backend 'nccl' needs a GPU of compute capability 8.0 or above, but GPU 1, Tesla T4, has 7.5");
  for (const int major : {8, 9, 10, 12}) {
    EXPECT_NO_THROW(check_capability({.number = 0, .name = "a GPU", .major = major, .minor = 0}));
  }
}

TEST(NcclEnvironment, WhatIsSetStays) {
  ::setenv("NARROWCAST_TEST_GIVEN", "mine", 1);
  ::setenv("NARROWCAST_TEST_EMPTY", "", 1);
  ::unsetenv("NARROWCAST_TEST_MISSING");
  set_where_missing(
      {{"NARROWCAST_TEST_GIVEN", "ours"}, {"NARROWCAST_TEST_EMPTY", "ours"}, {"NARROWCAST_TEST_MISSING", "ours"}});
  EXPECT_STREQ(std::getenv("NARROWCAST_TEST_GIVEN"), "mine");
  EXPECT_STREQ(std::getenv("NARROWCAST_TEST_EMPTY"), "ours");
  EXPECT_STREQ(std::getenv("NARROWCAST_TEST_MISSING"), "ours");
}

}  // namespace
}  // namespace narrowcast::nccl
