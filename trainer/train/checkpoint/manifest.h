// What a checkpoint holds, and manifest.json, which makes a folder of files a checkpoint.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <narrowcast/comm_hook.h>
#include "trainer/train/files/file_io.h"

namespace narrowcast::checkpoint {

// Tensors by name.
using TensorMap = hooks::HookState;

// What one rank gives to a checkpoint.
struct Content {
  int64_t step = 0;         // optimizer steps done
  nlohmann::json training;  // for the manifest: small things that are the same on all ranks
  TensorMap replica;        // the same on all ranks; rank 0 writes it
  TensorMap rank;           // this rank's own
};

// What one rank resumes from. The world may have another size than the one that wrote.
struct Restored {
  int64_t step = 0;
  nlohmann::json training;
  TensorMap replica;
  hooks::FormerRanks former;  // Content::rank of those who wrote
  std::string path;           // of the checkpoint, for messages
};

// The files' names, and the most bytes of a manifest, of which a rank takes about 150.
inline constexpr const char* kManifestName = "manifest.json";
inline constexpr int64_t kLargestManifest = int64_t{1} << 28;
inline constexpr const char* kReplicaName = "replica.safetensors";

// The name of the file of what is `rank`'s own: "rank-00003.safetensors".
std::string rank_file_name(int64_t rank);

// One file of a checkpoint.
struct ManifestFile {
  std::string name;  // in the checkpoint's folder
  files::FileDigest digest;
};

// What manifest.json says.
struct Manifest {
  int64_t step = 0;
  int64_t world_size = 1;
  std::vector<ManifestFile> files;  // kReplicaName, then one file per rank
  nlohmann::json settings;          // an object: what must be the same to resume
  nlohmann::json circumstances;     // an object: what the result's bits depend on besides
  nlohmann::json training;          // an object: what all ranks have in common
  std::string run_id = {};          // of the launcher's job that wrote it; empty: it has no name
};

// The manifest as a JSON object: "format", "format_version", the above ("run_id" if there is one), and last "sha256":
// that of the compact JSON of all the rest.
std::string format_manifest(const Manifest& manifest);

// The manifest that `text` is. Throws CorruptInputError naming `path` and what is wrong: no JSON, another format or
// version, a sum that does not fit, a key that is missing or has another type, files that are not those of world_size
// ranks.
Manifest parse_manifest(const std::string& text, const std::string& path);

// Checks that a training has the settings of the one that it resumes; both are objects of named values, e.g. {"hook":
// "int8"}. Throws c10::ValueError naming the first name whose values differ, both values and the checkpoint's `path`:
// "hook: is int4, but int8 in the checkpoint PATH". Names that both have come first, in the order of `by_cause`, then
// all others alphabetically. If only one has a name the error says so: "error_feedback: is true, but the checkpoint
// PATH has none".
void check_settings(const nlohmann::json& saved, const nlohmann::json& current, const std::string& path,
                    const std::vector<std::string>& by_cause = {});

// The names whose values differ, as "ranks (3, was 2), threads (1, was none)"; empty if there are none.
std::string describe_changes(const nlohmann::json& saved, const nlohmann::json& current);

}  // namespace narrowcast::checkpoint
