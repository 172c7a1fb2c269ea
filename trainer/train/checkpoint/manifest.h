// The content of a checkpoint, and manifest.json, which makes a folder of files a checkpoint.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/comm_hook.h>
#include "trainer/ddp/shards/pieces.h"
#include "trainer/train/files/file_io.h"

namespace narrowcast::checkpoint {

// Tensors by name.
using TensorMap = hooks::HookState;

// One rank's part of a checkpoint.
struct Content {
  int64_t step = 0;         // optimizer steps done
  nlohmann::json training;  // for the manifest: small values that are the same on all ranks
  TensorMap replica;        // the same on all ranks; rank 0 writes it
  TensorMap rank;           // this rank's own
};

// The state from which one rank resumes. The world may have another size than the one that wrote the checkpoint.
struct Restored {
  int64_t step = 0;
  nlohmann::json training;
  TensorMap replica;
  hooks::FormerRanks former;  // Content::rank of each rank that wrote
  std::string path;           // of the checkpoint, for messages
  // In a recovery in place: the pieces of the optimizer's state that this rank holds. Other ranks hold the others, and
  // `replica` has none of that state. Empty if `replica` has it.
  std::optional<std::vector<pieces::Piece>> pieces = {};
  bool pieces_have_values = false;  // The pieces are of the parameters as well, which `replica` may have wrongly.
};

// The files' names, and the largest size of a manifest in bytes. Each rank needs about 150 bytes in it.
inline constexpr const char* kManifestName = "manifest.json";
inline constexpr int64_t kLargestManifest = int64_t{1} << 28;
inline constexpr const char* kReplicaName = "replica.safetensors";

// The name of the file with Content::rank of `rank`: "rank-00003.safetensors".
std::string rank_file_name(int64_t rank);

// One file of a checkpoint.
struct ManifestFile {
  std::string name;  // in the checkpoint's folder
  files::FileDigest digest;
};

// The content of manifest.json.
struct Manifest {
  int64_t step = 0;
  int64_t world_size = 1;
  std::vector<ManifestFile> files;  // kReplicaName, then one file per rank
  nlohmann::json settings;          // an object: values that must be the same to resume
  nlohmann::json circumstances;     // an object: other values on which the result's bits depend
  nlohmann::json training;          // an object: as in Content
  std::string run_id = {};          // of the launcher's job that wrote it; empty: it has no name
};

// The manifest as a JSON object: "format", "format_version", the members of Manifest ("run_id" only if it is not
// empty), and last "sha256", the digest of the compact JSON of all others.
std::string format_manifest(const Manifest& manifest);

// Parses a manifest. Throws CorruptInputError naming `path` and the reason: `text` is not JSON, it has another format
// or version, the digest does not match, a key is missing or has another type, or the files are not the files of
// world_size ranks.
Manifest parse_manifest(const std::string& text, const std::string& path);

// Checks that a training has the settings of the training that it resumes. Both are objects of named values, e.g.
// {"hook": "int8"}. Throws c10::ValueError naming the first name whose values differ, both values and the checkpoint's
// `path`: "hook: is int4, but int8 in the checkpoint PATH". Names that both have come first, in the order of
// `by_cause`, then all others alphabetically. The message for a name that only one has: "error_feedback: is true, but
// the checkpoint PATH has none".
void check_settings(const nlohmann::json& saved, const nlohmann::json& current, const std::string& path,
                    const std::vector<std::string>& by_cause = {});

// The names whose values differ, as "ranks (3, was 2), threads (1, was none)"; empty if all are equal.
std::string describe_changes(const nlohmann::json& saved, const nlohmann::json& current);

}  // namespace narrowcast::checkpoint
