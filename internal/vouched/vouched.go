// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package vouched lists the attachments of a network that patchbayd docker maintains. A
// runtime that shares the network with Docker does not know them and leaves them out of a
// GC's list; they are valid nevertheless.
package vouched

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/spec"
)

// Holds is the directory below runDir with the namespaces that the Docker driver holds for
// attachments, from before each ADD until after its DEL.
func Holds(runDir string) string { return filepath.Join(runDir, "docker", "netns") }

// note holds the needed fields of a record (internal/record imports more than every plugin
// made with the SDK should link).
type note struct {
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifname"`
	NetNS       string `json:"netns"`

	Mark *life.Mark `json:"netnsMark"`
}

// Attachments returns the attachments of each container for which the driver holds a
// namespace, whichever runtime made them. A record that does not decode is skipped; one
// that cannot be read is an error, since GC removes anything that is left out.
func Attachments(runDir, network, proc string) ([]spec.Attachment, error) {
	if _, err := os.Lstat(Holds(runDir)); errors.Is(err, fs.ErrNotExist) {
		return nil, nil // the driver has never run
	}
	notes, err := read(runDir, network)
	if err != nil {
		return nil, err
	}
	held := map[string]bool{}
	for _, n := range notes {
		if filepath.Dir(n.NetNS) != Holds(runDir) || held[n.ContainerID] {
			continue
		}
		state, _ := life.At(n.NetNS, n.Mark, proc)
		held[n.ContainerID] = state != life.Dead
	}
	var out []spec.Attachment
	for _, n := range notes {
		if held[n.ContainerID] {
			out = append(out, spec.Attachment{ContainerID: n.ContainerID, IfName: n.IfName})
		}
	}
	return out, nil
}

func read(runDir, network string) (notes []note, err error) {
	if err := durable.CheckDir(runDir, "attachments", network); err != nil {
		return nil, fmt.Errorf("read records: %w", err)
	}
	dir := filepath.Join(runDir, "attachments", network)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read records: %w", err)
	}
	for _, e := range entries {
		var n note
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		switch {
		case errors.Is(err, fs.ErrNotExist): // removed meanwhile
		case err != nil:
			return nil, fmt.Errorf("read records: %w", err)
		case json.Unmarshal(data, &n) == nil && n.ContainerID != "":
			notes = append(notes, n)
		}
	}
	return notes, nil
}
