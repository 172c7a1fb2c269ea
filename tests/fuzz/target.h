// Readers of outside bytes as fuzz targets: any bytes must be accepted, or rejected with a clear error.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace narrowcast::fuzz {

struct Target {
  std::string name;
  // Reads the input as the programs do. May throw the errors that they report for bad input; run_target checks the
  // message.
  std::function<void(std::string_view input)> read;
  // Inputs of our own or other writers: a fuzzer's initial inputs, in addition to the files of corpus/NAME.
  std::function<std::vector<std::string>()> seeds;
};

std::vector<Target> file_targets();
std::vector<Target> data_targets();
std::vector<Target> launcher_targets();
std::vector<Target> host_targets();
std::vector<Target> wire_targets();
std::vector<Target> connection_targets();

// The targets of one file above: "file", "data", "launcher", "host", "wire" or "connection".
struct Group {
  std::string name;
  std::vector<Target> targets;
};

const std::vector<Group>& groups();

// Null if no target has that name.
const Target* find_target(std::string_view name);

// Reads the input. Aborts, with the reason on standard error, unless that succeeds or throws an error of input or use
// with one printable, bounded line for users.
void run_target(const Target& target, std::string_view input);

// Calls read(path of a file with the input).
std::function<void(std::string_view input)> as_file(const std::string& name,
                                                    std::function<void(const std::string& path)> read);

}  // namespace narrowcast::fuzz
