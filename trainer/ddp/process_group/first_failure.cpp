#include "trainer/ddp/process_group/first_failure.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <cstddef>
#include <vector>

#include <narrowcast/consensus.h>
#include <narrowcast/errors.h>
#include "trainer/base/files/text.h"

namespace narrowcast {
namespace {

constexpr size_t kLongestFailure = 2000;  // bytes

std::string failure_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const c10::ValueError& error) {
    return printable(error.what_without_backtrace(), kLongestFailure);
  } catch (const CorruptInputError& error) {
    return printable(error.what_without_backtrace(), kLongestFailure);
  } catch (const OutputError& error) {
    return printable(error.what_without_backtrace(), kLongestFailure);
  }
  return "";
}

}  // namespace

std::string first_failure(const ProcessGroupPtr& group, const std::function<void()>& body) {
  const std::vector<std::string> failures = all_gather_text(group, failure_of(body));
  for (size_t rank = 0; rank < failures.size(); ++rank) {
    if (!failures[rank].empty()) {
      const std::string failure = printable(failures[rank], kLongestFailure);  // Of a peer, which may send anything.
      return failures.size() == 1 ? failure : c10::str("rank ", rank, ": ", failure);
    }
  }
  return "";
}

std::string from_rank_0(const ProcessGroupPtr& group, const std::string& text) {
  return all_gather_text(group, group->getRank() == 0 ? text : "").at(0);
}

}  // namespace narrowcast
