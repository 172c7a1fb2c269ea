// Command lines of narrowcast-bench in this process. Each wrong one prints one line and has exit code 2.
#include "trainer/train/flags/bench_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "trainer/base/program/failure.h"

namespace narrowcast {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

struct ReadBench {
  int code = 0;
  std::string output = {};
  std::string errors = {};
  BenchArguments arguments = {};
  bench::BenchOptions options = {};
};

// The ending of a program that reads these words as narrowcast-bench does, checks them for two ranks, and measures
// nothing.
ReadBench read_bench(std::vector<std::string> words) {
  ReadBench end;
  words.insert(words.begin(), "narrowcast-bench");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  end.code = program::run_main(bench_description(end.arguments), static_cast<int>(argv.size()), argv.data(),
                               [&](const program::CommandLine& line) {
                                 end.options = read_bench_options(line, end.arguments);
                                 bench::check_options(end.options, /*world_size=*/2);
                                 return int{program::kSuccess};
                               });
  end.output = ::testing::internal::GetCapturedStdout();
  end.errors = ::testing::internal::GetCapturedStderr();
  return end;
}

struct WrongBench {
  std::vector<std::string> flags;
  std::string message;
};

void PrintTo(const WrongBench& use, std::ostream* out) { *out << ::testing::PrintToString(use.flags); }

class WrongBenchTest : public ::testing::TestWithParam<WrongBench> {};

TEST_P(WrongBenchTest, IsOneLine) {
  const ReadBench end = read_bench(GetParam().flags);
  EXPECT_EQ(end.code, program::kWrongUse);
  EXPECT_THAT(end.output, IsEmpty());
  EXPECT_THAT(end.errors, StartsWith("narrowcast-bench: " + GetParam().message));
  EXPECT_EQ(end.errors.find('\n'), end.errors.size() - 1) << end.errors;
}

INSTANTIATE_TEST_SUITE_P(
    All, WrongBenchTest,
    ::testing::Values(WrongBench{{"--iteration=3"}, "unknown flag --iteration; did you mean --iterations?"},
                      WrongBench{{"--hooks=int3"}, "hooks: 'int3' cannot be measured; known: allreduce, "},
                      WrongBench{{"--bucket_mib=1,x"}, "bucket_mib: 'x' is not a number"},
                      WrongBench{{"--bucket_mib=0"}, "bucket_mib: "},
                      WrongBench{{"--buckets=1,2.5"}, "buckets: '2.5' is not a"},
                      WrongBench{{"--buckets=0"}, "buckets: "}, WrongBench{{"--iterations=0"}, "iterations: "},
                      WrongBench{{"--iterations=many"}, "--iterations=many: "},
                      WrongBench{{"--warmup_iterations=-1"}, "warmup_iterations: "},
                      WrongBench{{"--min_bytes=1M", "--max_bytes=4M", "--bucket_mib=25"},
                                 "bucket_mib: excludes min_bytes and max_bytes, because both set the sizes of buckets"},
                      WrongBench{{"--min_bytes=1M"}, "min_bytes: 1M needs max_bytes, the largest size"},
                      WrongBench{{"--max_bytes=1M"}, "max_bytes: 1M needs min_bytes, the smallest size"},
                      WrongBench{{"--min_bytes=1X", "--max_bytes=4M"}, "min_bytes: '1X' is not a size"},
                      WrongBench{{"--factor=2"}, "factor: 2 has no effect without min_bytes and max_bytes"},
                      WrongBench{{"--json="}, "--json: must name a file"},
                      WrongBench{{"--report="}, "--report: must name a file"},
                      WrongBench{{"--report=book.txt"}, "report: must be a page named NAME.html"},
                      WrongBench{{"--levels=three"}, "levels: must be auto, one or two, but is 'three'"},
                      WrongBench{{"--silence_seconds=1"}, "--silence_seconds=1: must be 0 or at least 3"},
                      WrongBench{{"--silence_seconds=90", "--timeout_seconds=60"},
                                 "--silence_seconds=90: has no effect with --timeout_seconds=60"},
                      WrongBench{{"extra"}, "unexpected argument \"extra\""}));

TEST(BenchFlags, SetTheOptions) {
  const bench::BenchOptions options =
      read_bench({"--hooks=int8,fp8", "--bucket_mib=0.5,25", "--buckets=2", "--nolink", "--nokernels", "--nocheck",
                  "--iterations=7", "--warmup_iterations=0", "--json=results.json", "--report=page.html",
                  "--link_gbit=10", "--levels=one", "--node_size=1", "--device=cpu", "--timeout_seconds=60"})
          .options;
  EXPECT_THAT(options.hooks, ElementsAre("int8", "fp8"));
  EXPECT_THAT(options.bucket_mib, ElementsAre(0.5, 25));
  EXPECT_THAT(options.buckets, ElementsAre(2));
  EXPECT_FALSE(options.link || options.kernels || options.check);
  EXPECT_EQ(options.iterations, 7);
  EXPECT_EQ(options.warmup_iterations, 0);
  EXPECT_EQ(options.json_file, "results.json");
  EXPECT_EQ(options.report_file, "page.html");
  EXPECT_EQ(options.wire.link_gbit, 10);
  EXPECT_EQ(options.wire.levels, Levels::kOne);
  EXPECT_EQ(options.wire.node_size, 1);
  EXPECT_EQ(options.device, "cpu");
  EXPECT_EQ(options.group.timeout, std::chrono::seconds(60));
}

TEST(BenchFlags, SetARangeOfSizes) {
  EXPECT_EQ(read_bench({"--min_bytes=4K", "--max_bytes=1M", "--factor=4"}).options.sizes,
            (bench::SizeRange{.min_bytes = 4096, .max_bytes = 1 << 20, .factor = 4}));
}

TEST(BenchFlags, HaveDefaultsWithoutACommandLine) {
  const bench::BenchOptions options = read_bench({}).options;
  const bench::BenchOptions defaults;
  EXPECT_THAT(options.hooks, IsEmpty());
  EXPECT_EQ(options.bucket_mib, defaults.bucket_mib);
  EXPECT_EQ(options.buckets, defaults.buckets);
  EXPECT_EQ(options.sizes, std::nullopt);
  EXPECT_EQ(options.device, "auto");
}

TEST(BenchFlags, AreAllInHelp) {
  BenchArguments arguments;
  EXPECT_NO_THROW(program::check_flag_groups(bench_description(arguments)));
  EXPECT_THAT(read_bench({"--help"}).output, HasSubstr("--list_hooks"));
}

}  // namespace
}  // namespace narrowcast
