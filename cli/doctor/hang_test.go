// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A plugin hangs in STATUS. That is a finding, and the other networks are still checked.
func TestStatusOfAPluginThatHangs(t *testing.T) {
	b := newBench(t)
	b.askTime = 5 * time.Second
	b.must(os.WriteFile(filepath.Join(b.bin, "hangs"), []byte("#!/bin/sh\nexec sleep 600\n"), 0o755)) //nolint:gosec // a program
	b.must(os.WriteFile(filepath.Join(b.bin, "refuses"), []byte(refuses), 0o755))                     //nolint:gosec // a program
	b.network("a", `{"type":"hangs"}`)
	b.network("b", `{"type":"refuses"}`)
	b.finds("status", "problem: network a takes no containers now: plugin hangs did not answer STATUS within 5s",
		"problem: network b takes no containers now: not now")
}

const refuses = "#!/bin/sh\necho '{\"cniVersion\":\"1.1.0\",\"code\":50,\"msg\":\"not now\"}'\nexit 1\n"
