#include "tests/fuzz/target.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <utility>

#include <narrowcast/errors.h>
#include "ops/common/error_message.h"
#include "ops/common/text.h"
#include "tests/support/temporary_folder.h"

namespace narrowcast::fuzz {
namespace {

[[noreturn]] void fail(const Target& target, const std::string& why) {
  std::fprintf(stderr, "%s: %s\n", target.name.c_str(), why.c_str());
  std::abort();
}

// Messages may quote the input. The programs make it printable and cut it, but must not multiply it.
void check_message(const Target& target, const std::string& message, std::string_view input) {
  if (message.empty() || message.size() > 2 * kLongestMessage + 8 * input.size()) {
    fail(target, c10::str("a message for users of ", message.size(), " bytes: ", printable(message)));
  }
}

// One for each thread that fuzzes, for the thread's lifetime.
const testing::TemporaryFolder& folder() {
  static const thread_local testing::TemporaryFolder folder;
  return folder;
}

}  // namespace

const std::vector<Group>& groups() {
  static const std::vector<Group> all = {{"file", file_targets()},         {"data", data_targets()},
                                         {"launcher", launcher_targets()}, {"host", host_targets()},
                                         {"wire", wire_targets()},         {"connection", connection_targets()}};
  return all;
}

const Target* find_target(std::string_view name) {
  for (const Group& group : groups()) {
    const auto found = std::ranges::find(group.targets, name, &Target::name);
    if (found != group.targets.end()) return &*found;
  }
  return nullptr;
}

void run_target(const Target& target, std::string_view input) {
  try {
    target.read(input);
  } catch (const CorruptInputError& error) {
    check_message(target, error_message(error), input);
  } catch (const c10::ValueError& error) {
    check_message(target, error_message(error), input);
  } catch (const c10::DistBackendError& error) {
    check_message(target, error_message(error), input);
  } catch (const std::exception& error) {
    fail(target, std::string("its exception is not an error of an input: ") + printable(error_message(error)));
  }
}

std::function<void(std::string_view input)> as_file(const std::string& name,
                                                    std::function<void(const std::string& path)> read) {
  return [name, read = std::move(read)](std::string_view input) { read(folder().write(name, input)); };
}

}  // namespace narrowcast::fuzz
