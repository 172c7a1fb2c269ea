// An action that each rank does by itself, and that succeeds on all ranks or on none.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace narrowcast::connections {

// A collective. Calls `act` on another thread of each rank. Returns once all ranks have succeeded. If `act` throws on a
// rank, `stop` is called on the others, on the calling thread, which must make their `act` end soon. Then all ranks
// throw the same c10::DistBackendError "rank R: CALL failed: rank F: REASON" with the lowest rank F whose `act` has
// thrown before its `stop`. If a rank ends, each other rank names it as the F that has closed its connection.
//
// Each rank sends one report to each other rank, and waits for them in the order of ranks after its own. So a report of
// failure reaches the rank before, which stops and reports the same, and so on.
void act_together(const c10::intrusive_ptr<c10d::ProcessGroup>& group, const std::string& call,
                  const std::function<void()>& act, const std::function<void()>& stop);

}  // namespace narrowcast::connections
