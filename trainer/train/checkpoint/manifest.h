// manifest.json: what makes a folder of files a checkpoint.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trainer/train/files/sha256.h"

namespace narrowcast::checkpoint {

inline constexpr const char* kManifestName = "manifest.json";
inline constexpr int64_t kLargestManifest = int64_t{1} << 28;  // bytes; a rank takes about 150
inline constexpr const char* kReplicaName = "replica.safetensors";

// The file of what is `rank`'s own: "rank-00003.safetensors".
std::string rank_file_name(int64_t rank);

struct ManifestFile {
  std::string name;  // in the checkpoint's folder
  files::FileDigest digest;
};

struct Manifest {
  int64_t step = 0;
  int64_t world_size = 1;
  std::vector<ManifestFile> files;  // kReplicaName, then one file per rank
  nlohmann::json settings;          // an object: what must be the same to go on
  nlohmann::json circumstances;     // an object: what bits depend on besides
  nlohmann::json training;          // an object: what all ranks have in common
};

// A JSON object: "format", "format_version", the above, and last "sha256": that of the compact JSON of all the rest.
std::string format_manifest(const Manifest& manifest);

// Throws CorruptInputError naming `path` and what is wrong: no JSON, another format or version, a sum that does not
// fit, a key that is missing or has another type, files that are not those of world_size ranks.
Manifest parse_manifest(const std::string& text, const std::string& path);

}  // namespace narrowcast::checkpoint
