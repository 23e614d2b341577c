// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/lightjson"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/spec"
)

// Schema is the version of the record format. This program does not read a newer version.
const Schema = 1

// MaxFile is the size of the largest record, in bytes. A published port needs about 700 bytes,
// and telephony software publishes ten thousand ports.
const MaxFile = 128 << 20

// Head is the part of a record that says whose attachment it is and who made it (record.Record).
type Head struct {
	Schema      int          `json:"schema"`
	Plugin      string       `json:"plugin"`
	Owner       owner.Key    `json:"owner"`
	Network     string       `json:"network"`
	ContainerID string       `json:"containerID"`
	IfName      string       `json:"ifname"`
	NetNS       string       `json:"netns"`
	NetNSMark   *life.Mark   `json:"netnsMark"`
	Pod         string       `json:"pod"`
	Runtime     string       `json:"runtime"`
	Caller      *life.Caller `json:"caller"`
}

// Head reads the head of a record.
func (f File) Head() (*Head, error) {
	h := new(Head)
	data, err := durable.ReadUpTo(f.Path, MaxFile)
	if err == nil {
		err = lightjson.Unmarshal(data, h)
	}
	if err == nil {
		err = h.Check(f.Path)
	}
	if err != nil {
		return nil, fmt.Errorf("read record %s: %w", f.Path, err)
	}
	return h, nil
}

// Check returns an error if this program cannot use the record at path.
func (h *Head) Check(path string) error {
	switch {
	case h.Schema > Schema || !h.Owner.Valid():
		return fmt.Errorf("schema %d, this program reads up to %d", h.Schema, Schema)
	case !h.belongs(path):
		return errors.New("it is another attachment's")
	}
	return nil
}

// belongs reports whether the names in h match its path. Other paths are built from these names, so
// they must be the names that were validated when the record was written.
func (h *Head) belongs(path string) bool {
	dir, file := filepath.Split(path)
	return h.Owner == owner.Of(h.Network, h.ContainerID, h.IfName) &&
		file == string(h.Owner)+"."+h.Plugin && filepath.Base(dir) == h.Network &&
		spec.ValidateContainerID(h.ContainerID) == nil && spec.ValidateIfName(h.IfName) == nil
}
