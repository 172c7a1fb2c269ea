#include "trainer/train/checkpoint/manifest.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <set>

#include <narrowcast/errors.h>
#include "ops/common/text.h"
#include "trainer/base/files/json.h"

namespace narrowcast::checkpoint {
namespace {

using nlohmann::json;

constexpr const char* kFormat = "narrowcast checkpoint";
constexpr int64_t kFormatVersion = 1;
constexpr int64_t kMostRanks = 1 << 20;

std::string sum_of(const json& without_sum) {
  files::Sha256 hash;
  hash.update(without_sum.dump());
  return hash.hex();
}

json parse_object(const std::string& text, const std::string& path) {
  json object = files::parse_json(text, path, {.bytes = kLargestManifest});
  NARROWCAST_CHECK_INPUT(object.is_object(), path, ": is not a JSON object");
  NARROWCAST_CHECK_INPUT(object.value("format", json()) == kFormat, path, ": is not of the format '", kFormat, "'");
  const json version = object.value("format_version", json());
  NARROWCAST_CHECK_INPUT(version == kFormatVersion, path, ": has the format version ", printable(version.dump(), 200),
                         ", but this program reads version ", kFormatVersion);
  const json sum = object.value("sha256", json());
  object.erase("sha256");
  NARROWCAST_CHECK_INPUT(sum == sum_of(object), path, ": its SHA-256 differs from its entry sha256");
  return object;
}

const json& member(const json& object, const char* key, const std::string& path) {
  const auto found = object.find(key);
  NARROWCAST_CHECK_INPUT(found != object.end(), path, ": lacks '", key, "'");
  return *found;
}

int64_t integer(const json& object, const char* key, const std::string& path) {
  const json& value = member(object, key, path);
  NARROWCAST_CHECK_INPUT(value.is_number_integer() && value.get<int64_t>() >= 0, path, ": '", key, "' is ",
                         printable(value.dump(), 200), ", but must be an integer of at least 0");
  return value.get<int64_t>();
}

std::string text(const json& object, const char* key, const std::string& path) {
  const json& value = member(object, key, path);
  NARROWCAST_CHECK_INPUT(value.is_string(), path, ": '", key, "' is not a string");
  return value.get<std::string>();
}

const json& object_member(const json& object, const char* key, const std::string& path) {
  const json& value = member(object, key, path);
  NARROWCAST_CHECK_INPUT(value.is_object(), path, ": '", key, "' is not an object");
  return value;
}

std::string run_id_of(const json& object, const std::string& path) {
  return object.contains("run_id") ? text(object, "run_id", path) : "";
}

std::vector<ManifestFile> parse_files(const json& object, int64_t world_size, const std::string& path) {
  NARROWCAST_CHECK_INPUT(world_size >= 1 && world_size <= kMostRanks, path, ": 'world_size' is ", world_size);
  const json& list = member(object, "files", path);
  NARROWCAST_CHECK_INPUT(list.is_array() && static_cast<int64_t>(list.size()) == world_size + 1, path,
                         ": 'files' must have one entry for the replica and one for each of ", world_size, " ranks");
  std::vector<ManifestFile> files;
  for (const json& entry : list) {
    NARROWCAST_CHECK_INPUT(entry.is_object(), path, ": 'files' must hold only objects");
    const std::string expected = files.empty() ? kReplicaName : rank_file_name(static_cast<int64_t>(files.size()) - 1);
    const std::string name = text(entry, "name", path);
    NARROWCAST_CHECK_INPUT(name == expected, path, ": names the file ", in_quotes(name), " instead of ", expected);
    files.push_back({name, {integer(entry, "bytes", path), text(entry, "sha256", path)}});
  }
  return files;
}

// A name whose values differ.
struct Difference {
  std::string name;
  const json* saved;  // null: no value
  const json* current;
};

const json* find(const json& object, const std::string& name) {
  const auto found = object.find(name);
  return found == object.end() ? nullptr : &*found;
}

// Values in a manifest may be any text, so the result is made printable.
std::string text_of(const json& value) {
  const std::string text =
      value.is_string() ? value.get<std::string>() : value.dump(-1, ' ', false, json::error_handler_t::replace);
  return printable(text, kLongestCompared);
}

bool differ(const json* saved, const json* current) {
  return saved == nullptr || current == nullptr ? saved != current : *saved != *current;
}

// The names in either object: first the names in `first`, in that order, then the others alphabetically.
std::vector<std::string> names_in(const json& saved, const json& current, const std::vector<std::string>& first) {
  std::set<std::string> left;
  for (const json* const object : {&saved, &current}) {
    for (const auto& [name, value] : object->items()) {
      left.insert(name);
    }
  }
  std::vector<std::string> names;
  for (const std::string& name : first) {
    if (left.erase(name) > 0) names.push_back(name);
  }
  names.insert(names.end(), left.begin(), left.end());
  return names;
}

// Names that both have come first, because for example another hook also has other options.
std::vector<Difference> differences(const json& saved, const json& current,
                                    const std::vector<std::string>& by_cause = {}) {
  std::vector<Difference> found;
  for (const std::string& name : names_in(saved, current, by_cause)) {
    const Difference difference = {printable(name, kLongestCompared), find(saved, name), find(current, name)};
    if (differ(difference.saved, difference.current)) {
      found.push_back(difference);
    }
  }
  std::stable_partition(found.begin(), found.end(), [](const Difference& difference) {
    return difference.saved != nullptr && difference.current != nullptr;
  });
  return found;
}

}  // namespace

std::string rank_file_name(int64_t rank) { return absl::StrFormat("rank-%05d.safetensors", rank); }

std::string format_manifest(const Manifest& manifest) {
  json object = {{"format", kFormat},
                 {"format_version", kFormatVersion},
                 {"step", manifest.step},
                 {"world_size", manifest.world_size},
                 {"settings", manifest.settings},
                 {"circumstances", manifest.circumstances},
                 {"training", manifest.training},
                 {"files", json::array()}};
  if (!manifest.run_id.empty()) {
    object["run_id"] = manifest.run_id;
  }
  for (const ManifestFile& file : manifest.files) {
    object["files"].push_back({{"name", file.name}, {"bytes", file.digest.bytes}, {"sha256", file.digest.sha256}});
  }
  object["sha256"] = sum_of(object);
  return object.dump(/*indent=*/1) + "\n";
}

Manifest parse_manifest(const std::string& text, const std::string& path) {
  const json object = parse_object(text, path);
  Manifest manifest;
  manifest.step = integer(object, "step", path);
  manifest.world_size = integer(object, "world_size", path);
  manifest.files = parse_files(object, manifest.world_size, path);
  manifest.settings = object_member(object, "settings", path);
  manifest.circumstances = object_member(object, "circumstances", path);
  manifest.training = object_member(object, "training", path);
  manifest.run_id = run_id_of(object, path);
  return manifest;
}

void check_settings(const json& saved, const json& current, const std::string& path,
                    const std::vector<std::string>& by_cause) {
  const std::vector<Difference> found = differences(saved, current, by_cause);
  if (found.empty()) {
    return;
  }
  const Difference& first = found.front();
  TORCH_CHECK_VALUE(first.current != nullptr, first.name, ": this training has none, but it is ", text_of(*first.saved),
                    " in the checkpoint ", path);
  TORCH_CHECK_VALUE(first.saved != nullptr, first.name, ": is ", text_of(*first.current), ", but the checkpoint ", path,
                    " has none");
  TORCH_CHECK_VALUE(false, first.name, ": is ", text_of(*first.current), ", but ", text_of(*first.saved),
                    " in the checkpoint ", path);
}

std::string describe_changes(const json& saved, const json& current) {
  return absl::StrJoin(differences(saved, current), ", ", [](std::string* out, const Difference& difference) {
    absl::StrAppend(out, difference.name, " (", difference.current == nullptr ? "none" : text_of(*difference.current),
                    ", was ", difference.saved == nullptr ? "none" : text_of(*difference.saved), ")");
  });
}

}  // namespace narrowcast::checkpoint
