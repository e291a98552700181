// Checkpoints: all that a training run needs to go on as if it had never stopped.
//
// A checkpoint is one safetensors file, `checkpoint-000123.safetensors` for step 123, so that any safetensors
// reader finds the weights in it (as "model.<name>"). It is written atomically: a kill, a crash or a full
// disk at any moment leaves the previous one usable. A checksum over names, tensors and metadata tells a
// damaged one.
//
//   save_checkpoint("runs/a/checkpoints", {.model = model.state_dict(), ..., .epoch = 2, .batch = 17, .step =
//   955}); Checkpoint checkpoint = load_checkpoint("runs/a/checkpoints");
//
// One process at a time may save into a folder.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/runtime/random.h"
#include "lockstep/training/safetensors.h"

namespace lockstep {

struct Checkpoint {
  StateDict model = {}, optimizer = {}, schedule = {};
  RandomState random = {};       // of the generator
  int64_t epoch = 0, batch = 0;  // the data cursor: DataLoader::begin_epoch(epoch, batch) goes on
  int64_t step = 0;              // optimizer steps done
  Metadata metadata = {};        // the caller's: arguments of the program, name of the model, ...

  // Set by load_checkpoint.
  std::string path = {};                   // the file
  std::vector<std::string> problems = {};  // why newer files were passed over, one line each
};

// Returns the new file's path. The folder is made if need be. Once the new file is safe on the disk, all but
// the last `keep_last` are removed (0 keeps all), and what killed runs left half-written. Files of later
// steps, there when a run has gone back to an earlier checkpoint, are not part of this run any more: they get
// ".superseded" behind their name.
std::string save_checkpoint(const std::string& folder, const Checkpoint& checkpoint, int keep_last = 3);

// `path` is a checkpoint, or a folder of them: then the newest is taken that is whole; newer ones that are
// damaged are told in `problems`. Throws Error if there is none, or if the file is something else.
Checkpoint load_checkpoint(const std::string& path);

}  // namespace lockstep
