#include "trainer/train/bench/run_bench.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <sstream>

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"

namespace narrowcast::bench {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using testing::error_message;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(BenchOptions, MeasuresEveryHookThatAverages) {
  const auto hooks = hooks_to_measure({});
  EXPECT_EQ(hooks.front(), "allreduce");
  EXPECT_THAT(hooks, Contains("quantize_per_channel"));
  EXPECT_THAT(hooks, Not(Contains("none")));
  EXPECT_THAT(hooks, Not(Contains("noop")));
  EXPECT_THAT(measurable_hooks(), Contains("noop"));
  EXPECT_THAT(hooks, Not(Contains("quantized_allreduce")));  // same as int8
  EXPECT_THAT(hooks, Contains("int8"));
  EXPECT_THAT(hooks, Not(Contains("auto")));            // picks another hook
  EXPECT_THAT(hooks, Not(Contains("post_local_sgd")));  // averages only in groups
  EXPECT_THAT(hooks, Not(Contains("power_sgd")));       // nor three similar hooks: time alone does not decide
  EXPECT_EQ(hooks.size() + 8, measurable_hooks().size());
}

TEST(BenchOptions, PutsTheReferenceFirstAndOnlyOnce) {
  EXPECT_THAT(hooks_to_measure({.hooks = {"noop", "bf16_compress"}}),
              ElementsAre("allreduce", "noop", "bf16_compress"));
  EXPECT_THAT(hooks_to_measure({.hooks = {"bf16_compress", "allreduce"}}), ElementsAre("allreduce", "bf16_compress"));
}

struct BadOption {
  std::function<void(BenchOptions&)> change;
  const char* message;
};

class BenchOptionsErrors : public ::testing::TestWithParam<BadOption> {};

TEST_P(BenchOptionsErrors, NameTheOptionAndItsValue) {
  BenchOptions options;
  EXPECT_NO_THROW(check_options(options, 2));
  GetParam().change(options);
  EXPECT_THAT(error_message<c10::ValueError>([&] { check_options(options, 2); }), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Values, BenchOptionsErrors,
    ::testing::Values(
        BadOption{[](auto& o) { o.hooks = {"int3"}; }, "hooks: 'int3' cannot be measured; known: allreduce, "},
        BadOption{[](auto& o) { o.hooks = {"none"}; }, "hooks: 'none' cannot be measured"},
        BadOption{[](auto& o) {
                    o.hooks = {"noop", "noop"};
                  },
                  "hooks: 'noop' is named twice"},
        BadOption{[](auto& o) { o.bucket_mib = {}; }, "bucket_mib: must name at least one"},
        BadOption{[](auto& o) {
                    o.bucket_mib = {1, 0};
                  },
                  "but is 0"},
        BadOption{[](auto& o) { o.bucket_mib = {NAN}; }, "bucket_mib: must be in"},
        BadOption{[](auto& o) { o.bucket_mib = {8192}; }, "bucket_mib: must be in"},
        BadOption{[](auto& o) {
                    o.bucket_mib = {1, 1.0000001};
                  },
                  "bucket_mib: two values are the same size of 1048576 bytes"},
        BadOption{[](auto& o) { o.sizes = SizeRange{.min_bytes = 8, .max_bytes = 4}; }, "max_bytes: must be in 8"},
        BadOption{[](auto& o) { o.buckets = {0}; }, "buckets: must be in 1..256, but is 0"},
        BadOption{[](auto& o) {
                    o.buckets = {4, 4};
                  },
                  "buckets: 4 is named twice"},
        BadOption{[](auto& o) { o.iterations = 0; }, "iterations: must be in 1..1000000, but is 0"},
        BadOption{[](auto& o) { o.warmup_iterations = -1; }, "but is -1"},
        BadOption{[](auto& o) { o.wire.link_gbit = 0; }, "link_gbit: must be in 1e-06..1e+06, but is 0"}));

TEST(BenchOptions, HaveSizesInMibOrARange) {
  EXPECT_THAT(bucket_sizes({.bucket_mib = {25, 0.0625}}), ElementsAre(25 << 20, 64 << 10));
  EXPECT_THAT(bucket_sizes({.bucket_mib = {5e-6}}), ElementsAre(4));  // whole elements
  EXPECT_THAT(bucket_sizes({.sizes = SizeRange{.min_bytes = 8, .max_bytes = 100, .factor = 3}}),
              ElementsAre(8, 24, 72));
}

TEST(BenchOptions, NeedTwoRanks) {
  EXPECT_THAT(error_message<c10::ValueError>([] { check_options({}, 1); }), HasSubstr("needs at least 2 ranks"));
}

TEST(BenchOptions, AgreeOnWhatIsMeasuredButNotOnFiles) {
  const auto values = [](const BenchOptions& options) {
    std::string text;
    for (const NamedValue& value : agreed_values(options)) {
      text += value.name + "=" + value.value + " ";
    }
    return text;
  };
  EXPECT_EQ(values({}), values({.json_file = "other.json"}));
  EXPECT_NE(values({}), values({.hooks = {"noop"}}));
  EXPECT_NE(values({}), values({.bucket_mib = {24}}));
  EXPECT_NE(values({}), values({.buckets = {1}}));
  EXPECT_NE(values({}), values({.iterations = 21}));
  EXPECT_NE(values({}), values({.warmup_iterations = 0}));
  EXPECT_NE(values({}), values({.link = false}));
  EXPECT_NE(values({}), values({.check = false}));
  EXPECT_NE(values({}), values({.wire = {.levels = hooks::Levels::kOne}}));
  EXPECT_NE(values({}), values({.wire = {.node_size = 2}}));
  EXPECT_NE(values({}), values({.wire = {.link_us = 2}}));
  EXPECT_NE(values({}), values({.wire = {.link_gbit = 2}}));
  EXPECT_NE(values({}), values({.sizes = SizeRange{.min_bytes = 4, .max_bytes = 8}}));
}

TEST(BenchOptions, ParseLists) {
  EXPECT_THAT(parse_numbers("bucket_mib", {"0.0625", "25"}), ElementsAre(0.0625, 25));
  EXPECT_THAT(parse_integers("buckets", {"1", "4"}), ElementsAre(1, 4));
  EXPECT_THAT(error_message<c10::ValueError>([] { parse_numbers("bucket_mib", {"25M"}); }),
              HasSubstr("bucket_mib: '25M' is not a number"));
  EXPECT_THAT(error_message<c10::ValueError>([] { parse_integers("buckets", {"1.5"}); }),
              HasSubstr("buckets: '1.5' is not an integer"));
}

// The error of rank 0 of `ranks` before it joins the others.
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
  EXPECT_THAT(refusal({.device = "cuda:x", .threads = -1}, 1), HasSubstr("device: cuda:x is not a GPU"));
  EXPECT_THAT(refusal({.device = "tpu"}, 2), HasSubstr("device: unknown name 'tpu'"));
  EXPECT_THAT(refusal({}, 1), HasSubstr("at least 2 ranks"));
  EXPECT_THAT(refusal({.iterations = 0}, 2), HasSubstr("iterations"));
  EXPECT_THAT(refusal({.threads = -1}, 2), HasSubstr("threads"));
  EXPECT_THAT(refusal({.hooks = {"int8"}, .wire = {.node_size = -3}}, 2), HasSubstr("node_size: must be at least 1"));
  EXPECT_THAT(refusal({.hooks = {"bf16_compress"}, .wire = {.node_size = 1}}, 2),
              HasSubstr("node_size: 1 has no effect"));
  EXPECT_THAT(refusal({.hooks = {"bf16_compress"}, .wire = {.link_us = 50}}, 2),
              HasSubstr("link_us: 50 has no effect"));
  EXPECT_THAT(refusal({.json_file = folder / "no/such/folder.json"}, 2), HasSubstr("no/such/folder.json"));
}

}  // namespace
}  // namespace narrowcast::bench
