#include "trainer/train/reporting/prometheus.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>

#include <narrowcast/errors.h>
#include "tests/support/error_message.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/temporary_folder.h"
#include "tests/trainer/train/reporting/prometheus_text.h"
#include "trainer/base/files/open_file.h"

namespace narrowcast::reporting {
namespace {

using testing::error_message;
using ::testing::HasSubstr;
using ::testing::Pair;
using testing::TemporaryFolder;
using ::testing::UnorderedElementsAre;

class PrometheusFileTest : public ::testing::Test {
 protected:
  PrometheusOptions options(const std::string& hook = "int8") const {
    return {.path = path, .model = "char_gpt", .hook = hook, .unit = "tokens"};
  }
  std::string text() const { return files::read_file(path); }
  std::map<std::string, testing::PrometheusMetric> metrics() const { return testing::parse_prometheus(text()); }
  // The values of metrics of that type, by name without prefix.
  std::map<std::string, double> values(const std::string& type) const {
    std::map<std::string, double> values;
    for (const auto& [name, metric] : metrics()) {
      EXPECT_TRUE(name.starts_with("narrowcast_")) << name;
      if (metric.type == type) values[name.substr(11)] = metric.value;
    }
    return values;
  }
  const TemporaryFolder folder;
  const std::string path = folder / "narrowcast.prom";
};

StepReport example_step() {
  StepReport report;
  report.step = 5;
  report.loss = 1.0 / 3;
  report.learning_rate = 1e-5;
  report.gradient_norm = 0.75;
  report.units_per_second = 1234.5;
  report.seconds = 0.5;
  report.payload_bytes_sent = 9'007'199'254'740'993;
  report.measuring_bytes_sent = 1024;
  report.compression = 3.5;
  report.skipped_steps = 2;
  return report;
}

TEST_F(PrometheusFileTest, HoldsAReport) {
  PrometheusFile file(options());
  file.on_step(example_step());
  EXPECT_THAT(values("gauge"), UnorderedElementsAre(Pair("step", 5), Pair("training_loss", 1.0 / 3),
                                                    Pair("learning_rate", 1e-5), Pair("gradient_norm", 0.75),
                                                    Pair("tokens_per_second", 1234.5), Pair("compression_ratio", 3.5)));
  EXPECT_THAT(values("counter"),
              UnorderedElementsAre(Pair("training_seconds_total", 0.5), Pair("sent_payload_bytes_total", 0x1p53),
                                   Pair("sent_measuring_bytes_total", 1024), Pair("skipped_steps_total", 2)));
  EXPECT_THAT(text(), HasSubstr("} 9007199254740993\n")) << "a count keeps all its digits";
  for (const auto& [name, metric] : metrics()) {
    EXPECT_THAT(metric.labels, UnorderedElementsAre(Pair("model", "char_gpt"), Pair("hook", "int8"))) << name;
  }
}

TEST_F(PrometheusFileTest, HoldsWhatIsKnown) {
  PrometheusFile file(options());
  file.on_evaluation({.step = 3, .loss = 2.5, .seconds = 1});
  EXPECT_THAT(values("gauge"), UnorderedElementsAre(Pair("step", 3), Pair("validation_loss", 2.5)));
  EXPECT_TRUE(values("counter").empty());
  StepReport bare = example_step();
  bare.gradient_norm.reset();
  bare.compression.reset();
  file.on_step(bare);
  EXPECT_EQ(values("gauge").count("gradient_norm") + values("gauge").count("compression_ratio"), 0u);
  EXPECT_EQ(values("gauge").at("validation_loss"), 2.5) << "of the last evaluation";
  file.on_evaluation({.step = 6, .loss = 2.25, .seconds = 2});
  EXPECT_EQ(values("gauge").at("step"), 6);
  EXPECT_EQ(values("gauge").at("validation_loss"), 2.25);
  EXPECT_EQ(values("gauge").at("training_loss"), 1.0 / 3) << "of the last report";
}

TEST_F(PrometheusFileTest, WritesNumbersThatAreNone) {
  PrometheusFile file(options());
  StepReport report = example_step();
  report.loss = std::nan("");
  report.units_per_second = std::numeric_limits<double>::infinity();
  report.gradient_norm = -std::numeric_limits<double>::infinity();
  file.on_step(report);
  EXPECT_TRUE(std::isnan(values("gauge").at("training_loss")));
  EXPECT_EQ(values("gauge").at("tokens_per_second"), std::numeric_limits<double>::infinity());
  EXPECT_EQ(values("gauge").at("gradient_norm"), -std::numeric_limits<double>::infinity());
}

TEST_F(PrometheusFileTest, EscapesLabels) {
  const std::string hook = "my \"own\"\\hook\nof two lines";
  PrometheusFile file(options(hook));
  file.on_step(example_step());
  EXPECT_EQ(metrics().at("narrowcast_step").labels.at("hook"), hook);
}

// The file may be read while it is replaced.
TEST_F(PrometheusFileTest, ReadersSeeAWholeFile) {
  PrometheusFile file(options());
  file.on_step(example_step());
  const std::string before = text();
  std::ifstream reader(path);
  ASSERT_TRUE(reader.is_open());
  file.on_evaluation({.step = 10, .loss = 1, .seconds = 1});
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(reader), {}), before);
  EXPECT_NE(text(), before);
  EXPECT_EQ(folder.entries(), 1) << "nothing unfinished stays";
}

TEST_F(PrometheusFileTest, CannotBeWrittenLater) {
  PrometheusFile file(options());
  file.on_step(example_step());
  const std::string before = text();
  {
    const testing::FileSizeLimit limit(100);  // A write beyond it fails, as on a full disk.
    EXPECT_EQ(error_message<OutputError>([&] { file.on_step(example_step()); }),
              path + ": cannot be written: File too large");
  }
  EXPECT_EQ(text(), before);
  EXPECT_EQ(folder.entries(), 1);
  PrometheusFile elsewhere({.path = folder / "gone/narrowcast.prom"});
  EXPECT_EQ(error_message<OutputError>([&] { elsewhere.on_step(example_step()); }),
            folder / "gone/narrowcast.prom" + ": cannot be written: No such file or directory");
}

}  // namespace
}  // namespace narrowcast::reporting
