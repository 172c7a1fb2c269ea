// The launcher that serves the store, while strangers write there.
#include <absl/strings/str_split.h>
#include <c10/util/Exception.h>

#include <charconv>
#include <chrono>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "tests/fuzz/target.h"
#include "tests/support/job_secret.h"
#include "trainer/base/network/places.h"
#include "trainer/base/network/tcp_store.h"
#include "trainer/launcher/rendezvous/store_rendezvous.h"
#include "trainer/launcher/store/store_host.h"
#include "trainer/launcher/store/store_member.h"

namespace narrowcast::fuzz {
namespace {

using launcher::JobSeal;

constexpr std::chrono::milliseconds kSilence{1000};
constexpr int64_t kMostTickets = 20;
constexpr size_t kMostBytesOfADecision = size_t{1} << 20;

launcher::NodeDescription described(const std::string& host, int64_t node_rank) {
  return {.host = host,
          .pid = 7,
          .node_rank = node_rank,
          .settings = {.backend = launcher::kElasticBackend, .min_nodes = 1, .max_nodes = 2, .max_restarts = 1}};
}

// The same for workers that recover in place. The host runs them alone at first, and takes others in.
launcher::NodeDescription described_in_place(const std::string& host, int64_t node_rank) {
  launcher::NodeDescription node = described(host, node_rank);
  node.standby = "127.0.0.1:7";
  node.settings.in_place = true;
  return node;
}

// A job of one host, and strangers. An input consists of lines. Each line is one action of an attacker who can write to
// the store, except to the host's own entries:
// - +NUMBER draws NUMBER tickets, modulo kMostTickets: more would only take longer.
// - T/NAME VALUE sets the entry NAME of the launcher with ticket T, 2 or more, to VALUE.
// - Anything else lets half a heartbeat timeout pass; the host beats and decides.
class AttackedHost {
 public:
  AttackedHost(const JobSeal& seal, const launcher::NodeDescription& own)
      : host_(
            store_, launcher::Coordinator(own, {.last_call = kSilence, .silence = kSilence}, "made-up"), [] {}, seal),
        own_(store_, seal) {
    own_.join_as_host(own);
    if (own.settings.in_place) store_->set(rendezvous::job_prefix("made-up") + "/" + rendezvous::kRegroups, "1");
  }

  void suffer(std::string_view line) {
    const size_t space = line.find(' ');
    int64_t number = 0;
    const std::string_view digits = line.substr(line.starts_with('+') ? 1 : 0);
    const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    if (line.starts_with('+') && parsed.ec == std::errc() && number > 0) {
      store_->add(launcher::kLauncherKeys + std::string("tickets"), number % kMostTickets);
    } else if (parsed.ec == std::errc() && number >= 2 && space != std::string_view::npos && *parsed.ptr == '/') {
      const std::string key = launcher::kLauncherKeys + std::string("node/") + std::string(line.substr(0, space));
      store_->set(key, std::string(line.substr(space + 1)));
    } else {
      step();
    }
  }

  // Actions of strangers are never an error of the host, and the host keeps its part in the job.
  void step() {
    now_ += kSilence / 2;
    own_.beat();
    try {
      host_.step(now_);
      const launcher::Decision decision = own_.decision();
      own_.learn(decision);
      TORCH_INTERNAL_ASSERT(!decision.evicted.contains(1), "the host has turned itself away");
      TORCH_INTERNAL_ASSERT(to_text(decision).size() < kMostBytesOfADecision);
    } catch (const std::exception& error) {
      TORCH_INTERNAL_ASSERT(false, "the host has ended: ", error.what());
    }
  }

 private:
  const launcher::StorePtr store_ = c10::make_intrusive<c10d::HashStore>();
  launcher::StoreHost host_;
  launcher::StoreMember own_;
  launcher::Clock::time_point now_{};
};

void attack(std::string_view input, const JobSeal& seal, const launcher::NodeDescription& own) {
  AttackedHost host(seal, own);
  const std::string text(input);
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  for (const std::string& line : lines) host.suffer(line);
  host.step();
}

const JobSeal& some_seal() {
  static const JobSeal seal{
      .secret = testing::secret_of("what only launchers know"), .job = "job", .session = "session"};
  return seal;
}

// The entries of a launcher that joins, runs, fails and leaves.
std::vector<std::string> attacks_by(const launcher::NodeDescription& stranger) {
  const std::string node = to_text(stranger);
  const std::string introduced = "+1\n2/beat 1\n2/report \n2/left 0\n2/description " + node + "\n.\n";
  launcher::RoundReport report;
  report.round = 0;
  report.report.end = launcher::NodeReport::End::kInterrupted;
  report.report.signal = 15;
  return {introduced + "2/beat 2\n.\n2/report " + to_text(report) + "\n.\n2/left 1\n.\n",
          introduced + "2/report {}\n.\n2/beat x\n.\n+1000000000\n.\n3/hello x\n3/beat 1\n.\n.\n.\n.\n",
          "+3\n4/hello y\n2/welcome z\n.\n4/beat 1\n4/report \n4/left 0\n4/description {}\n.\n"};
}

std::vector<std::string> attacks() { return attacks_by(described("beta", 1)); }

Target host_target(std::string name, const JobSeal& seal) {
  return {std::move(name), [&seal](std::string_view input) { attack(input, seal, described("alpha", 0)); }, attacks};
}

// Strangers that come and go while the ranks live on.
Target host_target_in_place(const JobSeal& seal) {
  return {"host_in_place", [&seal](std::string_view input) { attack(input, seal, described_in_place("alpha", 0)); },
          [] {
            std::vector<std::string> seeds = attacks_by(described_in_place("beta", 1));
            for (std::string& seed : seeds) seed.insert(0, ".\n.\n.\n.\n");
            return seeds;
          }};
}

}  // namespace

std::vector<Target> host_targets() {
  static const JobSeal no_secret;
  return {host_target("host", no_secret), host_target("sealed_host", some_seal()), host_target_in_place(no_secret)};
}

}  // namespace narrowcast::fuzz
