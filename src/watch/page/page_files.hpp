// The files of web/ that are compiled into the library: page.html, the style and the scripts of the timeline page.
// write_page() inserts them into the page.
#pragma once

#include <span>

#include "base/embedded.hpp"

namespace slip::watch {

std::span<const base::EmbeddedFile> embedded_page();

}  // namespace slip::watch
