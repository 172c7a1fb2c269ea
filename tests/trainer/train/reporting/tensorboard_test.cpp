#include "trainer/train/reporting/tensorboard.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <filesystem>
#include <map>
#include <protozero/pbf_reader.hpp>
#include <set>
#include <string>
#include <vector>

#include <narrowcast/errors.h>
#include "tests/support/error_message.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/temporary_folder.h"
#include "trainer/base/files/open_file.h"

namespace narrowcast::reporting {
namespace {

using testing::error_message;
using testing::TemporaryFolder;
using namespace std::string_literals;

// Computed with a bitwise CRC-32C, which gives e3069283 for "123456789" as in RFC 3720.
TEST(TfRecord, HasLengthAndMaskedSums) {
  EXPECT_EQ(tfrecord(""), "\0\0\0\0\0\0\0\0\x29\x03\x98\x07\xd8\xea\x82\xa2"s);
  EXPECT_EQ(tfrecord("123456789"),
            "\x09\0\0\0\0\0\0\0\x37\xf9\x71\x39"
            "123456789"
            "\xe5\xb0\x8a\xc7"s);
}

struct Event {
  double wall_time = 0;
  int64_t step = 0;
  std::string version = {};
  std::string session_log = {};
  std::map<std::string, float> scalars = {};
};

std::map<std::string, float> read_scalars(protozero::pbf_reader summary) {
  std::map<std::string, float> scalars;
  while (summary.next(1)) {
    protozero::pbf_reader value = summary.get_message();
    std::string tag;
    while (value.next()) {
      if (value.tag() == 1) {
        tag = value.get_string();
      } else {
        scalars[tag] = value.get_float();
      }
    }
  }
  return scalars;
}

Event read_event(const std::string& data) {
  Event event;
  protozero::pbf_reader reader(data);
  while (reader.next()) {
    switch (reader.tag()) {
      case 1:
        event.wall_time = reader.get_double();
        break;
      case 2:
        event.step = reader.get_int64();
        break;
      case 3:
        event.version = reader.get_string();
        break;
      case 5:
        event.scalars = read_scalars(reader.get_message());
        break;
      case 7:
        event.session_log = reader.get_string();
        break;
      default:
        ADD_FAILURE() << "field " << reader.tag();
        reader.skip();
    }
  }
  return event;
}

// The events of complete records, whose checksums must be those that tfrecord computes.
std::vector<Event> events_of(const std::string& path) {
  const std::string file = files::read_file(path);
  std::vector<Event> events;
  for (size_t at = 0; at < file.size();) {
    uint64_t length = 0;
    std::memcpy(&length, file.data() + at, sizeof(length));
    const std::string data = file.substr(at + 12, length);
    EXPECT_EQ(file.substr(at, length + 16), tfrecord(data)) << "at byte " << at;
    events.push_back(read_event(data));
    at += length + 16;
  }
  return events;
}

std::vector<std::string> files_of(const TemporaryFolder& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) names.insert(entry.path());
  return {names.begin(), names.end()};
}

TEST(TensorBoardEvents, BeginWithTheFormat) {
  const TemporaryFolder folder;
  { const TensorBoardEvents events({.folder = folder.path()}); }
  ASSERT_EQ(folder.entries(), 1);
  const std::string path = files_of(folder).front();
  EXPECT_THAT(std::filesystem::path(path).filename().string(),
              ::testing::MatchesRegex("events\\.out\\.tfevents\\.[0-9]+\\..+"));
  const std::string bytes = files::read_file(path);
  EXPECT_EQ(bytes.substr(0, 12), "\x18\0\0\0\0\0\0\0\xa3\x7f\x4b\x22"s) << "24 bytes follow";
  EXPECT_EQ(bytes.substr(12, 1), "\x09") << "a double, field 1";
  EXPECT_EQ(bytes.substr(21, 15),
            "\x1a\x0d"
            "brain.Event:2")
      << "a string of 13 bytes, field 3";
}

TEST(TensorBoardEvents, HoldEveryNumberOfALine) {
  const TemporaryFolder folder;
  TensorBoardEvents events({.folder = folder.path(), .steps_done = 4});
  StepReport step{.step = 5, .loss = 0.5, .learning_rate = 0.25, .units_per_second = 100, .seconds = 2};
  step.payload_bytes_sent = 4096;
  step.measuring_bytes_sent = 64;
  step.gradient_norm = 1.5;
  step.compression = 4;
  step.skipped_steps = 1;
  step.exchange = ExchangeReport{.seconds = 0.25, .share = 0.125, .slowest_rank = 1, .waiting_share = 0.5};
  step.outer = OuterReport{.exchanges = 3};
  events.on_step(step);
  events.on_evaluation({.step = 5, .loss = 0.75, .seconds = 2, .accuracy = 0.875});
  const std::vector<Event> read = events_of(files_of(folder).front());  // While the training still runs.
  ASSERT_EQ(read.size(), 4u);
  EXPECT_EQ(read[0].version, "brain.Event:2");
  EXPECT_EQ(read[1].session_log, "\x08\x01") << "START";
  EXPECT_EQ(read[1].step, 5) << "what others tell of it is void";
  EXPECT_EQ(read[2].step, 5);
  EXPECT_NEAR(read[2].wall_time, read[0].wall_time, 600);
  const std::map<std::string, float> expected = {{"step/loss", 0.5},
                                                 {"step/learning_rate", 0.25},
                                                 {"step/gradient_norm", 1.5},
                                                 {"step/units_per_second", 100},
                                                 {"step/seconds", 2},
                                                 {"step/payload_bytes_sent", 4096},
                                                 {"step/measuring_bytes_sent", 64},
                                                 {"step/compression", 4},
                                                 {"step/skipped_steps", 1},
                                                 {"step/exchange_seconds", 0.25},
                                                 {"step/slowest_rank", 1},
                                                 {"step/waiting_share", 0.5},
                                                 {"step/outer_exchanges", 3},
                                                 {"step/joined_exchanges", 0},
                                                 {"step/lost_exchanges", 0},
                                                 {"step/outer_payload_bytes_sent", 0}};
  EXPECT_EQ(read[2].scalars, expected);
  EXPECT_EQ(read[3].scalars, (std::map<std::string, float>{{"evaluation/validation_loss", 0.75},
                                                           {"evaluation/validation_accuracy", 0.875},
                                                           {"evaluation/seconds", 2}}));
}

TEST(TensorBoardEvents, AreANewFileInTheSameSecond) {
  const TemporaryFolder folder;
  { const TensorBoardEvents first({.folder = folder.path()}); }
  { const TensorBoardEvents second({.folder = folder.path(), .steps_done = 7}); }
  const std::vector<std::string> files = files_of(folder);
  ASSERT_EQ(files.size(), 2u);
  EXPECT_EQ(events_of(files[0])[1].step, 1);
  EXPECT_EQ(events_of(files[1])[1].step, 8) << "after the first, by name";
}

TEST(TensorBoardEvents, NeedAFolder) {
  const TemporaryFolder folder;
  folder.write("file", "");
  const auto complaint = [&](const std::string& name) {
    return error_message<c10::ValueError>([&] { make_tensorboard_folder(folder / name); });
  };
  EXPECT_EQ(complaint("a/b"), "nothing was thrown");
  EXPECT_TRUE(std::filesystem::is_empty(folder / "a/b"));
  EXPECT_EQ(complaint("a"), "nothing was thrown") << "it is there";
  EXPECT_EQ(complaint("file"), "tensorboard_dir: cannot create folder " + folder / "file" + ": Not a directory");
  EXPECT_EQ(complaint("file/x"), "tensorboard_dir: cannot create folder " + folder / "file/x" + ": Not a directory");
  EXPECT_EQ(error_message<c10::ValueError>([&] {
              TensorBoardEvents({.folder = folder / "none"});
            }).find("tensorboard_dir: " + folder / "none/events.out.tfevents."),
            0u);
}

TEST(TensorBoardEvents, AFullDiskIsAnError) {
  const TemporaryFolder folder;
  TensorBoardEvents events({.folder = folder.path()});
  const testing::FileSizeLimit limit(100);
  EXPECT_THAT(error_message<OutputError>([&] {
                for (int64_t step = 1; step < 100; ++step) events.on_evaluation({.step = step});
              }),
              ::testing::EndsWith(": cannot be written: File too large"));
}

}  // namespace
}  // namespace narrowcast::reporting
