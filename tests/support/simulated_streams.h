// A device with streams and events that computes nothing: it only records the enqueued work. Shows which work of a
// stream waits for which other work. Its type is FPGA, of which LibTorch has only the name.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

namespace narrowcast::testing {

inline constexpr c10::DeviceType kSimulated = c10::DeviceType::FPGA;
inline const c10::Device kSimulatedDevice(kSimulated, 0);

// All streams of the device. Use it from one thread at a time.
class SimulatedStreams {
 public:
  // Records work on the current stream; use each name once.
  static void enqueue(const std::string& work) {
    std::set<std::string>& done = state().done[state().current];
    if (!state().before.emplace(work, done).second) throw std::logic_error(work + " is enqueued twice");
    state().stream_of[work] = state().current;
    done.insert(work);
  }

  // Whether `later` begins only after `earlier` is done.
  static bool precedes(const std::string& earlier, const std::string& later) {
    return state().before.at(later).contains(earlier);
  }
  static bool has_high_priority(const std::string& work) { return state().stream_of.at(work) % 2 == 1; }

  // From now on, until reset, streams cannot be ordered, as after a persistent device error.
  static void break_events() { state().events_are_broken = true; }

  // Until release_events or reset, the device reaches no event.
  static void hold_events() { state().events_are_held = true; }
  static void release_events() { state().events_are_held = false; }

  // Forgets all work.
  static void reset() { state() = {}; }

  // A float32 tensor of one element on the device.
  static at::Tensor tensor() {
    static float element = 0;
    c10::Storage storage(c10::Storage::use_byte_size_t(), sizeof(element), c10::DataPtr(&element, kSimulatedDevice),
                         nullptr, false);
    auto tensor = at::detail::make_tensor<c10::TensorImpl>(
        std::move(storage), c10::DispatchKeySet(c10::DispatchKey::FPGA), caffe2::TypeMeta::Make<float>());
    tensor.unsafeGetTensorImpl()->set_sizes_contiguous({1});
    return tensor;
  }

 private:
  friend class SimulatedGuard;
  using Works = std::set<std::string>;
  struct State {
    c10::StreamId current = 0;
    c10::StreamId streams = 1;            // Streams of high priority have odd numbers.
    std::map<c10::StreamId, Works> done;  // By stream, the work that is done once all of the stream's work is.
    std::map<std::string, Works> before;
    std::map<std::string, c10::StreamId> stream_of;
    bool events_are_broken = false;
    bool events_are_held = false;
  };
  static State& state() {
    static State state;
    return state;
  }
};

// LibTorch's interface to a device.
class SimulatedGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kSimulated; }
  c10::Device exchangeDevice(c10::Device) const override { return kSimulatedDevice; }
  c10::Device getDevice() const override { return kSimulatedDevice; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

  c10::Stream getStream(c10::Device) const override { return stream(SimulatedStreams::state().current); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool high_priority) const override {
    c10::StreamId& streams = SimulatedStreams::state().streams;
    streams += 2;
    return stream(high_priority ? streams : streams + 1);
  }
  c10::Stream exchangeStream(c10::Stream next) const override {
    return stream(std::exchange(SimulatedStreams::state().current, next.id()));
  }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    if (SimulatedStreams::state().events_are_broken) throw std::runtime_error("no event can be recorded");
    delete static_cast<Works*>(*event);
    *event = std::make_unique<Works>(SimulatedStreams::state().done[stream.id()]).release();
  }
  void block(void* event, const c10::Stream& stream) const override {
    SimulatedStreams::state().done[stream.id()].merge(Works(*static_cast<Works*>(event)));
  }
  bool queryEvent(void*) const override { return !SimulatedStreams::state().events_are_held; }
  void synchronizeEvent(void*) const override {}
  // A millisecond for each work that is done at the second event and not yet at the first.
  double elapsedTime(void* first, void* second, c10::DeviceIndex) const override {
    const Works& before = *static_cast<Works*>(first);
    const Works& done = *static_cast<Works*>(second);
    return static_cast<double>(std::ranges::count_if(done, [&](const auto& work) { return !before.contains(work); }));
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete static_cast<Works*>(event); }

 private:
  using Works = SimulatedStreams::Works;
  static c10::Stream stream(c10::StreamId id) { return c10::Stream(c10::Stream::UNSAFE, kSimulatedDevice, id); }
};

// One instance per program, however many files include this header.
inline const c10::impl::DeviceGuardImplRegistrar kSimulatedGuard(kSimulated,
                                                                 std::make_unique<SimulatedGuard>().release());

// record_stream does nothing: the device has no allocator that must keep memory.
inline const std::unique_ptr<torch::Library> kSimulatedOperators = [] {
  auto library =
      std::make_unique<torch::Library>(torch::Library::IMPL, "aten", c10::DispatchKey::FPGA, __FILE__, __LINE__);
  library->impl("record_stream", [](at::Tensor&, at::Stream) {});
  return library;
}();

}  // namespace narrowcast::testing
