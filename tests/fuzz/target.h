// What reads bytes from outside, each as a target for a fuzzer: any bytes must be taken or refused with a clear error.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace narrowcast::fuzz {

struct Target {
  std::string name;
  // Reads the input as the programs read it. May throw what they report as an error of the input, whose message is
  // looked at (run_target).
  std::function<void(std::string_view input)> read;
  // What our own writers or others have written: what a fuzzer begins with, beside the files of corpus/NAME.
  std::function<std::vector<std::string>()> seeds;
};

std::vector<Target> file_targets();
std::vector<Target> data_targets();
std::vector<Target> launcher_targets();
std::vector<Target> host_targets();
std::vector<Target> wire_targets();

// Those of a file above, as "file", "data", "launcher", "host" and "wire".
struct Group {
  std::string name;
  std::vector<Target> targets;
};

const std::vector<Group>& groups();

// Null if there is none of that name.
const Target* find_target(std::string_view name);

// Reads the input. Aborts, saying why on standard error, if that throws anything but an error of input or use with one
// printable, bounded line for users.
void run_target(const Target& target, std::string_view input);

// Calls read(path of a file that holds the input).
std::function<void(std::string_view input)> as_file(const std::string& name,
                                                    std::function<void(const std::string& path)> read);

}  // namespace narrowcast::fuzz
