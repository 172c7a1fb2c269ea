// Checks of a rank's own arguments. A rank whose arguments are wrong still takes part in the call: it sends the others
// the reason, and all ranks throw it. If it threw alone, the others would wait for it until their time-out.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include <narrowcast/export.h>

namespace narrowcast::collectives {

// c10::ValueError if elements of `tensor` share memory with each other, as in an expanded tensor: such a tensor cannot
// be written to.
void check_writable(const std::string& name, const at::Tensor& tensor);

struct Refusal {
  bool wrong_type = false;  // A c10::TypeError, else a c10::ValueError.
  std::string reason;
};

// Runs `check` of this rank's arguments and returns its c10::ValueError or c10::TypeError, if it throws. Another
// c10::Error counts as a c10::ValueError: LibTorch throws it for lack of memory, and for a kind of tensor that the
// check does not expect. So does std::bad_alloc.
NARROWCAST_EXPORT std::optional<Refusal> refusal_of(const std::function<void()>& check);

// Throws the error of `rank` with the text that all ranks use: "CALL on rank R: REASON", printable and bounded. Without
// a call: "rank R: REASON".
[[noreturn]] void throw_refusal(const Refusal& refusal, const std::string& call, int64_t rank);

// Sends this rank's refusal to the other ranks by `inform`, a collective that throws the same error on all ranks. If
// `inform` fails with c10::DistBackendError, throws `refusal` and the reason why it did not reach the other ranks.
[[noreturn]] void refuse_together(const Refusal& refusal, const std::function<void()>& inform);

}  // namespace narrowcast::collectives
