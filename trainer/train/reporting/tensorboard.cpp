#include "trainer/train/reporting/tensorboard.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <fcntl.h>
#include <isa-l/crc.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <protozero/pbf_writer.hpp>
#include <system_error>

#include "ops/common/file_descriptor.h"
#include "trainer/train/files/file_io.h"
#include "trainer/train/reporting/metrics.h"

namespace narrowcast::reporting {
namespace {

// The numbers of fields in TensorFlow's event.proto and summary.proto.
enum EventField : protozero::pbf_tag_type { kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7 };
constexpr protozero::pbf_tag_type kValueOfSummary = 1;
enum ValueField : protozero::pbf_tag_type { kTag = 1, kSimpleValue = 2 };
constexpr protozero::pbf_tag_type kStatusOfSessionLog = 1;
constexpr int32_t kSessionStart = 1;

// ISA-L's function takes and returns the CRC's register, which CRC-32C inverts, and only reads the bytes.
uint32_t crc32c(std::string_view bytes) {
  TORCH_CHECK(bytes.size() <= std::numeric_limits<int>::max(), "a record of ", bytes.size(), " bytes");
  auto* const data = reinterpret_cast<unsigned char*>(const_cast<char*>(bytes.data()));
  return ~crc32_iscsi(data, static_cast<int>(bytes.size()), ~uint32_t{0});
}

// A CRC of data that contain CRCs is weak, so TFRecord files rotate them and add this constant.
uint32_t masked(uint32_t crc) { return std::rotr(crc, 15) + 0xa282ead8U; }

template <class Integer>
std::string little_endian(Integer value) {
  static_assert(std::endian::native == std::endian::little);
  const auto bytes = std::bit_cast<std::array<char, sizeof(value)>>(value);
  return {bytes.data(), bytes.size()};
}

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string host_name() {
  std::array<char, 256> name = {};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "localhost";
}

std::string version_event() {
  std::string event;
  protozero::pbf_writer writer(event);
  writer.add_double(kWallTime, seconds_since_1970());
  writer.add_string(kFileVersion, "brain.Event:2");
  return event;
}

// From this step on, TensorBoard drops events that it has read from other files of the folder.
std::string start_event(int64_t first_step) {
  std::string event;
  protozero::pbf_writer writer(event);
  writer.add_double(kWallTime, seconds_since_1970());
  writer.add_int64(kStep, first_step);
  protozero::pbf_writer log(writer, kSessionLog);
  log.add_enum(kStatusOfSessionLog, kSessionStart);
  return event;
}

// The numbers of a line of metrics.jsonl, except the step, which is a field of the event.
std::string scalars_event(const nlohmann::json& line) {
  const std::string prefix = line.at("event").get<std::string>() + "/";
  std::string event;
  protozero::pbf_writer writer(event);
  writer.add_double(kWallTime, seconds_since_1970());
  writer.add_int64(kStep, line.at("step").get<int64_t>());
  protozero::pbf_writer summary(writer, kSummary);
  for (const auto& [key, number] : line.items()) {
    if (number.is_number() && key != "step") {
      protozero::pbf_writer value(summary, kValueOfSummary);
      value.add_string(kTag, prefix + key);
      value.add_float(kSimpleValue, number.get<float>());
    }
  }
  return event;
}

// Creates a new file, and puts its name into `path`. TensorBoard reads files in the order of their names: if another
// file exists for this second, the name uses the next second.
FileDescriptor open_new(const std::string& folder, std::string& path) {
  for (auto seconds = static_cast<int64_t>(seconds_since_1970());; ++seconds) {
    path = std::filesystem::path(folder) / c10::str("events.out.tfevents.", seconds, ".", host_name());
    FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (file.is_open() || errno != EEXIST) {
      return file;
    }
  }
}

}  // namespace

std::string tfrecord(std::string_view data) {
  const std::string length = little_endian(static_cast<uint64_t>(data.size()));
  std::string record = length + little_endian(masked(crc32c(length)));
  record += data;
  return record + little_endian(masked(crc32c(data)));
}

void make_tensorboard_folder(const std::string& folder) {
  files::make_folder("tensorboard_dir", folder);
  files::check_replaceable("tensorboard_dir", std::filesystem::path(folder) / "events");
}

TensorBoardEvents::TensorBoardEvents(const TensorBoardOptions& options) : descriptor_(open_new(options.folder, path_)) {
  TORCH_CHECK_VALUE(descriptor_.is_open(), "tensorboard_dir: ", path_, ": cannot be written: ", files::reason(errno));
  write(version_event());
  write(start_event(options.steps_done + 1));
}

void TensorBoardEvents::on_step(const StepReport& report) { write(scalars_event(step_json(report))); }

void TensorBoardEvents::on_evaluation(const EvaluationReport& report) { write(scalars_event(evaluation_json(report))); }

void TensorBoardEvents::write(const std::string& event) { files::write_fully(descriptor_, path_, tfrecord(event)); }

}  // namespace narrowcast::reporting
