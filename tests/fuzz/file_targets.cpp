// Files of models and trainings.
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <c10/util/Exception.h>

#include <filesystem>
#include <string>
#include <vector>

#include <narrowcast/models.h>
#include "models/imported/package_file.h"
#include "models/imported/package_manifest.h"
#include "tests/fuzz/target.h"
#include "tests/models/imported/small_package.h"
#include "tests/support/temporary_folder.h"
#include "trainer/base/files/json.h"
#include "trainer/base/files/open_file.h"
#include "trainer/base/files/safetensors_header.h"
#include "trainer/base/program/command_line.h"
#include "trainer/base/program/failure.h"
#include "trainer/train/checkpoint/checkpoint_folder.h"
#include "trainer/train/checkpoint/folder_owner.h"
#include "trainer/train/checkpoint/manifest.h"
#include "trainer/train/files/file_io.h"
#include "trainer/train/files/model_file.h"
#include "trainer/train/files/safetensors.h"
#include "trainer/train/reporting/metrics.h"

namespace narrowcast::fuzz {
namespace {

// The bytes that `write` writes to a path.
template <class Write>
std::string written(const std::string& name, const Write& write) {
  const testing::TemporaryFolder folder;
  write(folder / name);
  return files::read_file(folder / name);
}

files::Safetensors some_tensors() {
  return {.tensors = {{"weight", at::arange(6, at::kFloat).view({2, 3})},
                      {"mask", at::ones({3}, at::kBool)},
                      {"empty", at::ones({0, 4}, at::kBFloat16)},
                      {"count", at::arange(2, at::kLong)}},
          .metadata = {{"format", "pt"}, {"note", "\u00e4"}}};
}

std::string safetensors_file() {
  return written("a.safetensors", [](const std::string& path) { files::write_safetensors(path, some_tensors()); });
}

std::string model_file() {
  return written("model.safetensors", [](const std::string& path) {
    const models::ModelOptions options{
        {"vocabulary_size", 3}, {"context", 2}, {"layers", 1}, {"heads", 1}, {"width", 4}};
    files::save_model(path, {"char_gpt", models::create_model("char_gpt", options), {"a", "b", "\u00e4"}});
  });
}

Target safetensors_header() {
  return {"safetensors_header",
          [](std::string_view input) { files::parse_safetensors_header(input, 100, "a.safetensors"); },
          [] {
            const std::string file = safetensors_file();
            return std::vector<std::string>{file.substr(8, file.find("}}") + 2 - 8), "{}"};
          }};
}

Target safetensors() {
  return {"safetensors",
          as_file("a.safetensors",
                  [](const std::string& path) {
                    files::map_safetensors(path);
                    files::read_safetensors(path);
                  }),
          [] {
            return std::vector<std::string>{safetensors_file(), model_file()};
          }};
}

Target model() {
  return {"model_file", as_file("model.safetensors", [](const std::string& path) { files::load_model(path); }),
          [] { return std::vector<std::string>{model_file()}; }};
}

// Reads as --init_from does for a model that accepts such files.
Target initial_state() {
  return {"init_from",
          as_file("model.safetensors",
                  [](const std::string& path) {
                    const files::InitialState state = files::read_initial_state(path, "gpt2");
                    const models::ModelOptions options = files::options_with(state, {{"heads", 1}});
                    files::check_size(state, "gpt2", options);
                  }),
          [] { return std::vector<std::string>{model_file()}; }};
}

files::FileDigest digest_of(const std::string& bytes) {
  files::Sha256 sum;
  sum.update(bytes);
  return {.bytes = std::ssize(bytes), .sha256 = sum.hex()};
}

checkpoint::Manifest manifest_of(const files::FileDigest& replica, const files::FileDigest& rank) {
  return {.step = 7,
          .world_size = 1,
          .files = {{checkpoint::kReplicaName, replica}, {checkpoint::rank_file_name(0), rank}},
          .settings = {{"hook", "int8"}},
          .circumstances = {{"ranks", 1}},
          .training = nlohmann::json::object()};
}

Target manifest() {
  return {"manifest", [](std::string_view input) { checkpoint::parse_manifest(std::string(input), "manifest.json"); },
          [] {
            const files::FileDigest digest = digest_of("0123456789");
            return std::vector<std::string>{checkpoint::format_manifest(manifest_of(digest, digest))};
          }};
}

// The first byte selects the file of a checkpoint that the rest is: the replica or the rank's own file, with a manifest
// that has the right or a wrong checksum, or the manifest.
void read_folder(std::string_view input) {
  if (input.empty()) return;
  static const std::string whole = safetensors_file();
  const std::string bytes(input.substr(1));
  const int kind = static_cast<unsigned char>(input[0]) % 5;
  const std::string& replica = kind < 2 ? bytes : whole;
  const std::string& rank = kind == 2 || kind == 3 ? bytes : whole;
  const checkpoint::Manifest manifest =
      manifest_of(digest_of(kind == 1 ? whole : replica), digest_of(kind == 3 ? whole : rank));
  const testing::TemporaryFolder folder;
  folder.write("step-00000007/replica.safetensors", replica);
  folder.write("step-00000007/" + checkpoint::rank_file_name(0), rank);
  folder.write("step-00000007/manifest.json", kind == 4 ? bytes : checkpoint::format_manifest(manifest));
  checkpoint::read_checkpoint(folder / "step-00000007", 0, 1);
}

Target checkpoint_folder() {
  return {"checkpoint_folder", read_folder, [] {
            std::vector<std::string> seeds;
            for (const char kind : {'\0', '\1', '\2', '\3'}) seeds.push_back(kind + safetensors_file());
            const files::FileDigest digest = digest_of(safetensors_file());
            seeds.push_back('\4' + checkpoint::format_manifest(manifest_of(digest, digest)));
            return seeds;
          }};
}

Target folder_owner() {
  const auto read_file = as_file(
      "owner.json", [](const std::string& path) { checkpoint::read_owner(std::filesystem::path(path).parent_path()); });
  return {"folder_owner", read_file, [] {
            return std::vector<std::string>{
                R"({"job":"j","host":"h","machine":"m","pid":7,"since":"2026-01-02T03:04:05.678Z","beat":3})"};
          }};
}

Target package_manifest() {
  return {"package_manifest", [](std::string_view input) { models::parse_manifest(input, "net.pt2"); },
          [] { return std::vector<std::string>{testing::SmallPackage().manifest_text()}; }};
}

// The records of a package with these weights. Its libraries are read and not loaded.
testing::Records package_records(std::string_view weights) {
  static const testing::SmallPackage unchanged;
  testing::SmallPackage package = unchanged;
  package.manifest["weights"]["bytes"] = weights.size();
  testing::Records records = package.records("library");
  records["narrowcast/weights.safetensors"] = weights;
  return records;
}

std::string package_weights() { return testing::safetensors_of(testing::SmallPackage().weights); }

Target package() {
  return {"package", as_file("net.pt2", [](const std::string& path) { models::read_package(path); }), [] {
            return std::vector<std::string>{written("net.pt2", [](const std::string& path) {
              testing::write_archive(path, package_records(package_weights()));
            })};
          }};
}

// The checksums of the archive are right.
Target weights_of_package() {
  const auto read = [](std::string_view input) {
    const testing::TemporaryFolder folder;
    models::read_package(testing::write_archive(folder / "net.pt2", package_records(input)));
  };
  return {"package_weights", read, [] { return std::vector<std::string>{package_weights()}; }};
}

Target metrics() {
  return {"metrics",
          as_file("metrics.jsonl",
                  [](const std::string& path) {
                    reporting::read_metrics(path);
                    // Truncation waits for the disk, so only one input in 16 does it.
                    if (std::filesystem::file_size(path) % 16 == 5) reporting::truncate_metrics(path, 5);
                  }),
          [] {
            return std::vector<std::string>{
                "{\"event\": \"start\"}\n{\"event\": \"step\", \"step\": 3}\n{\"event\": "
                "\"step\", \"step\": 9, \"training_loss\": 1.5}\n"};
          }};
}

Target json() {
  return {"json",
          [](std::string_view input) {
            const files::ParsedJson parsed = files::try_parse_json(input);
            if (parsed.problem.empty()) parsed.value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
          },
          [] { return std::vector<std::string>{R"({"a": [1, -2.5e3, null, true], "b": {"c": "\u00e4\n"}})"}; }};
}

Target error_file() {
  return {"error_file", as_file("error.json", [](const std::string& path) { program::read_error_file(path); }), [] {
            return std::vector<std::string>{
                R"({"message": {"message": "rank 1", "extraInfo": {"py_callstack": "x", "timestamp": "1"}}})",
                R"({"message": "text", "restart": false, "misfit": true})"};
          }};
}

Target flag_file() {
  program::Description description;
  description.name = "narrowcast_fuzz";  // The targets run in this program, with these flags.
  description.groups = {{"Flags", {"list", "target", "group", "inputs", "seed", "corpus", "input_file"}}};
  return {"flag_file",
          as_file("flags.txt",
                  [description](const std::string& path) {
                    const program::CommandLine line(description, {"--flagfile=" + path});
                  }),
          [] { return std::vector<std::string>{"# comment\n--no_such_flag=1\n\n--\n"}; }};
}

}  // namespace

std::vector<Target> file_targets() {
  return {safetensors_header(), safetensors(),      model(),   initial_state(),      manifest(), checkpoint_folder(),
          folder_owner(),       package_manifest(), package(), weights_of_package(), metrics(),  json(),
          error_file(),         flag_file()};
}

}  // namespace narrowcast::fuzz
