// Reading one image from a PNG or PGM file.
#pragma once

#include <string>

#include "lockstep/runtime/tensor.h"

namespace lockstep {

// The pixels as [H, W, C] uint8: C is 1 for grey, 3 for colour. Told apart by the content, not by the name.
//
//   PNG   palettes become colours; 16-bit samples are rounded to 8 bits; grey of 1, 2 and 4 bits is stretched
//   to 0 to 255;
//         transparent pixels are laid over black. Gamma and colour profiles are ignored.
//   PGM   P2 (text) and P5 (binary), any maximum up to 65535, scaled to 0 to 255.
//
// Files are treated as hostile: a damaged one is an Error with its path, and no more memory is taken than the
// file's size can account for.
Tensor read_image(const std::string& path);

}  // namespace lockstep
