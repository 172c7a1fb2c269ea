// narrowcast-bench --device: without a GPU, and with two ranks on one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include <narrowcast/wire_format.h>
#include "tests/programs/train_commands.h"
#include "tests/support/devices.h"
#include "tests/support/temporary_folder.h"

namespace narrowcast::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

// The lines without the program's name.
std::string complaint_of(const std::string& program, const ProgramEnd& end) {
  EXPECT_EQ(end.exit_code, 2) << end.errors;
  EXPECT_THAT(end.output, IsEmpty());
  EXPECT_THAT(end.errors, StartsWith(program + ": "));
  return end.errors.substr(program.size());
}

// The device is checked first, before the number of processes and the path of the results. So nothing is written, and
// nothing waits.
TEST(NarrowcastBenchDevice, WithoutAGpuIsTheSameErrorAsNarrowcastTrains) {
  const TemporaryFolder folder;
  for (const std::string device : {"--device=cuda", "--device=cuda:0"}) {
    const ProgramEnd bench =
        run_to_end({kNarrowcastBench, device, "--json=" + folder / "no/such/folder/bench.json"}, alone());
    EXPECT_EQ(complaint_of("narrowcast-bench", bench),
              complaint_of("narrowcast-train", run_to_end({kNarrowcastTrain, device}, alone())));
    EXPECT_EQ(count_of("\n", bench.errors), 1) << bench.errors;
    EXPECT_THAT(bench.errors, AllOf(HasSubstr("device: " + device.substr(9) + " needs a "),
                                    AnyOf(EndsWith("this build has no CUDA\n"), EndsWith("no GPU or no driver\n"))));
  }
  EXPECT_EQ(folder.entries(), 0);
}

TEST(NarrowcastBenchDevice, IsTheProcessorsWhereThereIsNoGpuForEachRank) {
  const ProgramEnd end =
      run_to_end({kNarrowcastRun, "--noprefix", "--nproc_per_node=2", kNarrowcastBench, "--device=auto", "--hooks=int8",
                  "--bucket_mib=0.01", "--buckets=1", "--iterations=1", "--nokernels", "--nolink"},
                 alone());
  EXPECT_EQ(end.exit_code, 0) << end.errors;
  EXPECT_THAT(end.output, HasSubstr("Ranks: 2 on one node; two levels.\n"));
}

class NarrowcastBenchCudaTest : public ::testing::Test {
 protected:
  void SetUp() override { NARROWCAST_SKIP_WITHOUT(c10::DeviceType::CUDA); }

  // Two ranks, both on GPU 0.
  static ProgramEnd bench_on_gpu(const Words& flags) {
    const Words command = {kNarrowcastRun, "--noprefix", "--nproc_per_node=2", kNarrowcastBench, "--device=cuda:0"};
    return run_to_end(command + flags, with_gpus(alone()));
  }

  nlohmann::json results() const { return nlohmann::json::parse(files::read_file(folder / "bench.json")); }

  const TemporaryFolder folder;
};

TEST_F(NarrowcastBenchCudaTest, MeasuresAllOfItOnTheGpu) {
  const ProgramEnd end = bench_on_gpu({"--bucket_mib=0.0625,1", "--iterations=6", "--json=" + folder / "bench.json",
                                       "--report=" + folder / "page.html"});
  ASSERT_EQ(end.exit_code, 0) << end.errors;
  EXPECT_THAT(end.output,
              AllOf(StartsWith("Ranks: 2 on one node; two levels; buckets on GPUs.\n"), HasSubstr("\nLink: "),
                    HasSubstr("\nKernels, rank 0's GPU, "), HasSubstr("\nHooks: "), HasSubstr("\nExactness: ")));
  EXPECT_EQ(count_of("\nRecommendation: ", end.output), 1) << end.output;
  const nlohmann::json json = results();
  EXPECT_EQ(json.at("device"), "cuda");
  EXPECT_GT(json.at("link").at("gbit_per_second"), 0);
  EXPECT_GT(json.at("link").at("round_trip_us"), 0);
  EXPECT_GT(json.at("kernels").at("memory_copy_gb_per_second"), 50) << "the slowest GPU has more";
  EXPECT_EQ(json.at("kernels").at("formats").size(), kWireFormats.size());
  for (const auto& [name, format] : json.at("kernels").at("formats").items()) {
    EXPECT_GT(format.at("encode_gb_per_second"), 0) << name;
    EXPECT_GT(format.at("decode_gb_per_second"), 0) << name;
  }
  EXPECT_EQ(json.at("hooks").size() / 2, json.at("exactness").size()) << "two numbers of buckets, both sizes";
  for (const auto& row : json.at("hooks")) {
    EXPECT_EQ(row.at("milliseconds").size(), 6U);
    EXPECT_GT(row.at("min_ms"), 0) << row;
    EXPECT_LE(row.at("min_ms"), row.at("median_ms")) << row;
  }
  EXPECT_GT(folder.entries(), 1) << "the page";
}

// The same codes are sent, whichever device encodes them, so that the means are as far from the exact ones as on the
// CPU.
TEST_F(NarrowcastBenchCudaTest, IsAsExactAsOnTheCpu) {
  const Words flags = {"--bucket_mib=0.25",
                       "--buckets=1",
                       "--iterations=1",
                       "--nokernels",
                       "--nolink",
                       "--node_size=1",
                       "--json=" + folder / "bench.json"};
  const ProgramEnd on_gpu = bench_on_gpu(flags);
  ASSERT_EQ(on_gpu.exit_code, 0) << on_gpu.errors;
  const nlohmann::json gpu = results().at("exactness");
  const ProgramEnd on_cpu = run_to_end(
      Words{kNarrowcastRun, "--noprefix", "--nproc_per_node=2", kNarrowcastBench, "--device=cpu"} + flags, alone());
  ASSERT_EQ(on_cpu.exit_code, 0) << on_cpu.errors;
  const nlohmann::json cpu = results().at("exactness");
  ASSERT_EQ(gpu.size(), cpu.size());
  for (size_t i = 0; i < gpu.size(); ++i) {
    EXPECT_EQ(gpu[i].at("hook"), cpu[i].at("hook"));
    EXPECT_EQ(gpu[i].at("outside_tolerance"), 0) << gpu[i];
    EXPECT_TRUE(gpu[i].at("replicas_equal")) << gpu[i];
    // Sums over all elements have another order; float32 means also differ in single roundings.
    const double expected = cpu[i].at("squared_relative_error");
    EXPECT_NEAR(gpu[i].at("squared_relative_error"), expected, 1e-2 * expected + 1e-14) << gpu[i];
  }
}

}  // namespace
}  // namespace narrowcast::testing
