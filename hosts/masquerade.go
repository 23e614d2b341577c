// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// The configuration of a network asks for masquerade, and each attachment gets its own
// elements. An earlier release did not write this into the configuration: its agent masqueraded
// the whole range. This file is for nodes that are updated from that release. Remove it, with
// the fields of mesh.Subnet, when no Docker network has a copy of such a configuration any
// more.

// bare reports whether a Docker network has a copy of a configuration without masquerade. Its
// containers, also future ones, then have no masquerade of their own.
func (f *thisHost) bare(network string) bool {
	return slices.ContainsFunc(f.copies, func(c dockerCopy) bool { return c.Bare && c.Network == network })
}

// confRest is how long an ADD with the old configuration may still run after the file was
// replaced: a runtime keeps its copy for a moment, and the ADD itself takes time.
const confRest = 10 * time.Minute

// settled reports whether a network's configuration has had masquerade for so long that no ADD
// with an older configuration can still be running.
func settled(dir, network string) bool {
	path := filepath.Join(dir, network+confSuffix)
	data, err := ours(path)
	if err != nil || !bytes.Contains(data, []byte(`"ipMasqOutside"`)) {
		return false
	}
	fi, err := os.Lstat(path)
	return err == nil && time.Since(fi.ModTime()) > confRest
}
