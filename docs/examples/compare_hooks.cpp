// Trains the same network with several hooks, and prints the bytes that each of them sends and the loss that it
// reaches.
//
//   narrowcast-run --standalone --nproc_per_node=2 ./compare_hooks [HOOK[,OPTION=VALUE...]...]
//   ./compare_hooks --list      # the names of all hooks
//
// Options have the names of narrowcast-train's flags: int4,error_feedback=true. A name in brackets wraps a hook:
// bf16(allreduce) sends bfloat16.
#include <narrowcast/narrowcast.h>
#include <narrowcast/wire_format.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <charconv>
#include <cstdint>
#include <exception>
#include <iomanip>
#include <iostream>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

namespace {

namespace hooks = narrowcast::hooks;

constexpr int64_t kSteps = 60;
constexpr const char* kPowerSgdMemory = "averaged";  // As PyTorch's hook; "local" is narrowcast's default.
const std::vector<std::string> kDefaultHooks = {"none",      "quantize_per_channel", "int8", "int4,error_feedback=true",
                                                "power_sgd", "bf16(allreduce)"};

// The options to compare a hook on one machine.
hooks::HookOptions default_options(const std::string& hook) {
  hooks::HookOptions options;
  if (hooks::takes_wire_options(hook) || hooks::power_sgd_rank_of(hook)) {
    options.wire.node_size = 1;  // Each rank counts as a node; within a node nothing would be sent.
  }
  if (hooks::power_sgd_rank_of(hook)) {
    options.power_sgd = {.start = 10, .memory = hooks::parse_power_sgd_memory(kPowerSgdMemory)};
  }
  if (hooks::takes_channel_size(hook)) {
    options.channel_size = 256;
  }
  return options;
}

// The value of an option, of the type of its text.
hooks::OptionValue value_of(const std::string& text) {
  if (text == "true" || text == "false") {
    return text == "true";
  }
  int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [read, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && read == end ? hooks::OptionValue(number) : hooks::OptionValue(text);
}

// `choice` is "HOOK" or "HOOK,OPTION=VALUE,...". Throws c10::ValueError or c10::TypeError for a wrong name or value.
narrowcast::DdpOptions options_of(const std::string& choice) {
  std::istringstream parts(choice);
  std::string hook;
  std::getline(parts, hook, ',');
  hooks::HookOptions of_hook = default_options(hook);
  for (std::string part; std::getline(parts, part, ',');) {
    const size_t equals = part.find('=');
    TORCH_CHECK_VALUE(equals != std::string::npos, "'", part, "' is not OPTION=VALUE");
    hooks::set_option(of_hook, part.substr(0, equals), value_of(part.substr(equals + 1)));
  }
  hooks::check_hook_options(hook, of_hook);
  const auto common = narrowcast::DdpOptions().bucket_cap_mb(std::nullopt);  // Measured in the first steps.
  return common.with_hook(hook).hook_options(of_hook);
}

// One line: how the hook encodes, and the options that differ from their defaults.
std::string describe(const narrowcast::DdpOptions& ddp_options) {
  const std::string& hook = ddp_options.hook();
  const hooks::HookOptions options = hooks::effective_options(hook, ddp_options.hook_options());
  std::ostringstream text;
  if (const auto format = hooks::wire_format_of(hook, options.wire)) {
    text << *format << ' ';
  }
  if (const auto size = hooks::channel_size_of(hook, options.channel_size)) {
    text << *size << " elements per scale ";
  }
  if (const auto rank = hooks::power_sgd_rank_of(hook, options.power_sgd)) {
    text << "rank " << *rank << ' ';
  }
  for (const hooks::NamedOption& option : hooks::named_options(options)) {
    if (option.is_given) {
      text << option.name << '=' << hooks::text_of(option.value) << ' ';
    }
  }
  return text.str();
}

// The name inside of "bf16(NAME)", or nothing.
std::optional<std::string> wrapped_name(const std::string& name) {
  constexpr std::string_view prefix = "bf16(";
  if (!name.starts_with(prefix) || !name.ends_with(')')) {
    return std::nullopt;
  }
  return name.substr(prefix.size(), name.size() - prefix.size() - 1);
}

using Network = torch::nn::Sequential;
using Ddp = narrowcast::DistributedDataParallel<Network>;

// Returns the last loss.
double train(Ddp& ddp, int64_t rank) {
  torch::optim::AdamW optimizer(ddp.module()->parameters(), /*lr=*/1e-3);
  torch::manual_seed(rank);  // Each rank has different data.
  double loss_value = 0;
  for (int64_t step = 0; step < kSteps; ++step) {
    const at::Tensor x = torch::randn({32, 64});
    const at::Tensor loss = (ddp.forward(x) - x.mean(1, /*keepdim=*/true).sin()).square().mean();
    ddp.zero_grad();
    ddp.backward(loss);
    optimizer.step();
    loss_value = loss.item<double>();
  }
  return loss_value;
}

void print(Ddp& ddp, const std::string& description, double loss) {
  std::cout << std::left << std::setw(24) << ddp.hook_name() << std::right << std::setw(10) << ddp.payload_bytes_sent()
            << " bytes of " << ddp.payload_bytes_without_hook() << ", compression " << std::setprecision(3)
            << ddp.compression().value_or(1) << ", loss " << loss << ", waited " << ddp.take_waited_seconds() << " s\n";
  if (!description.empty()) {
    std::cout << "    " << description << '\n';
  }
  if (!ddp.hook_nodes().empty()) {
    std::cout << "    nodes: " << ddp.hook_nodes() << '\n';
  }
  if (!ddp.hook_decision().empty()) {
    std::cout << "    chosen: " << ddp.hook_decision() << '\n';
  }
  if (const auto& choice = ddp.bucket_choice()) {
    std::cout << "    " << ddp.bucket_bytes().size() << " buckets of at most " << choice->size().cap_mb << " MiB\n";
  }
}

// A collective.
void compare(const std::string& name, const narrowcast::ProcessGroupPtr& group) {
  torch::manual_seed(0);  // Each hook begins with the same parameters.
  Network network(torch::nn::Linear(64, 1024), torch::nn::Tanh(), torch::nn::Linear(1024, 1024), torch::nn::Tanh(),
                  torch::nn::Linear(1024, 1));
  const auto inner = wrapped_name(name);
  const narrowcast::DdpOptions options = inner ? narrowcast::DdpOptions() : options_of(name);
  Ddp ddp(network, group, options);
  if (inner) {
    ddp.register_comm_hook(
        hooks::wrap_in_format(hooks::create_comm_hook(*inner, options_of(*inner).hook_options(group)), "bf16"));
  }
  const double loss = train(ddp, group->getRank());
  if (group->getRank() == 0) {
    print(ddp, inner ? "" : describe(options), loss);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> names = argc > 1 ? std::vector<std::string>(argv + 1, argv + argc) : kDefaultHooks;
  if (names[0] == "--list") {
    for (const std::string& name : hooks::comm_hook_names()) {
      std::cout << name << '\n';
    }
    return 0;
  }
  try {
    for (const std::string& name : names) {
      options_of(wrapped_name(name).value_or(name));  // A wrong name is an error before ranks connect.
    }
    const auto env = narrowcast::WorkerEnv::from_environment();
    const narrowcast::ProcessGroupScope scope(env);
    scope.run([&] {
      for (const std::string& name : names) {
        compare(name, scope.group());
      }
    });
  } catch (const c10::ValueError& error) {
    std::cerr << error.what_without_backtrace() << '\n';
    return 2;
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << '\n';
    return 1;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
