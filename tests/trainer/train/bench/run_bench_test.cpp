#include "trainer/train/bench/run_bench.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"

namespace narrowcast::bench {
namespace {

using testing::error_message;
using ::testing::HasSubstr;

// What rank 0 of `ranks` says before it joins the others.
std::string refusal(const BenchOptions& options, int64_t ranks) {
  WorkerEnv env;
  env.world_size = ranks;
  std::ostringstream results;
  std::ostringstream progress;
  const job::JobContext context = {
      .env = env, .session = {}, .results = results, .progress = progress, .progress_is_terminal = false};
  return error_message<c10::ValueError>([&] { run_bench(options, context); });
}

TEST(RunBench, ChecksBeforeItJoins) {
  const testing::TemporaryFolder folder;
  EXPECT_THAT(refusal({}, 1), HasSubstr("at least 2 ranks"));
  EXPECT_THAT(refusal({.iterations = 0}, 2), HasSubstr("iterations"));
  EXPECT_THAT(refusal({.threads = -1}, 2), HasSubstr("threads"));
  EXPECT_THAT(refusal({.json_file = folder / "no/such/folder.json"}, 2), HasSubstr("no/such/folder.json"));
}

}  // namespace
}  // namespace narrowcast::bench
