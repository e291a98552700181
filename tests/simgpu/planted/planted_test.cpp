#include "simgpu/planted/planted.h"

namespace {

simgpu::Config config_of(uint64_t seed) {
  simgpu::Config config;
  config.seed = seed;
  config.policy = static_cast<simgpu::Policy>(seed % 3);
  config.patience_ms = 5000;
  return config;
}

std::string run(void (*program)(bool), bool faulty, uint64_t seed, std::vector<simgpu::Report>* reports) {
  simgpu::reset(config_of(seed));
  std::string thrown;
  try {
    program(faulty);
  } catch (const lockstep::Error& e) {
    thrown = e.what();
  }
  *reports = simgpu::take_reports();
  return thrown;
}

TEST_P(PlantedFault, is_reported_and_its_twin_is_silent) {
  const Planted& planted = GetParam();
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    std::vector<simgpu::Report> reports;
    run(planted.program, true, seed, &reports);
    bool found = false;
    for (const simgpu::Report& r : reports)
      found = found || (r.kind == planted.kind && r.message.find(planted.says) != std::string::npos);
    ASSERT_TRUE(found) << "seed " << seed << ": expected [" << planted.kind << "] ..." << planted.says
                       << "..., got:\n"
                       << simgpu::describe(reports);

    const std::string thrown = run(planted.program, false, seed, &reports);
    ASSERT_EQ(thrown + simgpu::describe(reports), "") << "seed " << seed << ", the right twin";
  }
}

}  // namespace
