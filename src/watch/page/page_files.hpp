// The files of web/ that are embedded into the library: page.html, the style and the scripts of the timeline page.
#pragma once

#include <span>

#include "base/embedded.hpp"

namespace slip {

std::span<const EmbeddedFile> embedded_page();

}  // namespace slip
