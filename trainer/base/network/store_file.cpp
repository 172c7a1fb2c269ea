#include "trainer/base/network/store_file.h"

#include <c10/util/Exception.h>

#include <exception>
#include <filesystem>
#include <fstream>
#include <system_error>

#include <narrowcast/errors.h>
#include "ops/common/text.h"
#include "trainer/base/files/open_file.h"
#include "trainer/base/network/addresses.h"

namespace narrowcast::network {
namespace {

constexpr int64_t kLongestAddress = 1024;  // bytes; a host's name has at most 255

}  // namespace

std::optional<StoreAddress> read_store_file(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error) && !error) {
    return std::nullopt;
  }
  const std::string text = files::read_file(path, {.most_bytes = kLongestAddress});
  const std::optional<HostAndPort> read = parse_host_and_port(text.substr(0, text.find('\n')));
  NARROWCAST_CHECK_INPUT(text.ends_with('\n') && read && read->port.value_or(0) > 0, path, ": is ", in_quotes(text),
                         ", but must be HOST:PORT, the address of the job's store");
  return StoreAddress{.host = read->host, .port = *read->port};
}

void write_store_file(const std::string& path, const StoreAddress& store) {
  const std::string unfinished = path + ".new";
  std::ofstream file(unfinished);
  file << host_and_port(store.host, store.port) << '\n';
  file.close();
  std::error_code error;
  if (file.good()) {
    std::filesystem::rename(unfinished, path, error);
  }
  TORCH_CHECK_VALUE(file.good() && !error, path,
                    ": cannot be written: workers could not learn that another launcher serves the job's store");
}

bool store_has_moved(const std::string& path, const StoreAddress& from) {
  try {
    return read_store_file(path).value_or(from) != from;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace narrowcast::network
