#include "trainer/ddp/process_group/first_failure.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <vector>

#include <narrowcast/consensus.h>
#include <narrowcast/errors.h>
#include <narrowcast/network_errors.h>
#include "ops/comm/groups/group.h"
#include "ops/common/text.h"

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
      const std::string failure = printable(failures[rank], kLongestFailure);  // From a peer, which may send anything.
      return failures.size() == 1 ? failure : c10::str("rank ", rank, ": ", failure);
    }
  }
  return "";
}

void do_on_all_ranks(const ProcessGroupPtr& group, const std::string& prefix, const std::function<void()>& body) {
  constexpr int64_t kFailed = 1;
  constexpr int64_t kOutputFailed = 2;
  int64_t own = 0;
  const std::string failure = first_failure(group, [&] {
    own = kFailed;
    try {
      body();
    } catch (const OutputError&) {
      own = kOutputFailed;
      throw;
    }
    own = 0;
  });
  if (failure.empty()) {
    return;
  }
  const at::Tensor all = with_network_errors(group->getRank(), "all-gather of values", [&] {
    const at::Tensor row = at::full({1}, own, at::kLong);
    return collectives::all_gather_rows(group, row.to(collectives::any_device(group))).flatten();
  });
  const int64_t first = all[all.ne(0).nonzero().flatten()[0]].item<int64_t>();
  NARROWCAST_CHECK_OUTPUT(first != kOutputFailed, prefix, failure);
  TORCH_CHECK_VALUE(false, prefix, failure);
}

std::string from_rank_0(const ProcessGroupPtr& group, const std::string& text) {
  return all_gather_text(group, group->getRank() == 0 ? text : "").at(0);
}

}  // namespace narrowcast
