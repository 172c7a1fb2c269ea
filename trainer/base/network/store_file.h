// Recovery in place on several nodes: the file with the address of the launcher that serves the job's store. When that
// launcher is lost, another one serves a new store elsewhere, and each launcher replaces the file of its workers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace narrowcast::network {

// Where a store is served.
struct StoreAddress {
  std::string host;  // a name or a number
  int64_t port = 0;

  bool operator==(const StoreAddress&) const = default;
};

// The address in the file, "HOST:PORT" as write_store_file writes it and a line feed. Nothing if there is no such file.
// Throws CorruptInputError naming the file if it has other content, and c10::ValueError if it cannot be read.
std::optional<StoreAddress> read_store_file(const std::string& path);

// Replaces the file at once by one that says `store`. Throws c10::ValueError naming the file if it cannot be written.
void write_store_file(const std::string& path, const StoreAddress& store);

// Whether the file names another address. False if it cannot be read now. Throws nothing.
bool store_has_moved(const std::string& path, const StoreAddress& from);

}  // namespace narrowcast::network
