// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package tuning

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/durable"
)

// saved is the reference's backup file: the original value of every changed attribute. Each
// plugin restores what the other saved.
type saved struct {
	Mac      string `json:"mac,omitempty"`
	Promisc  *bool  `json:"promisc,omitempty"`
	MTU      int    `json:"mtu,omitempty"`
	Allmulti *bool  `json:"allmulti,omitempty"`
	TxQLen   *int   `json:"txQLen,omitempty"`
}

// original reads from link the values that c will change.
func original(c *Conf, link netlink.Link) saved {
	var s saved
	if c.Mac != "" {
		s.Mac = link.Attrs().HardwareAddr.String()
	}
	if c.Promisc {
		on := link.Attrs().Promisc != 0
		s.Promisc = &on
	}
	if c.MTU != 0 {
		s.MTU = link.Attrs().MTU
	}
	if c.Allmulti != nil {
		on := link.Attrs().RawFlags&unix.IFF_ALLMULTI != 0
		s.Allmulti = &on
	}
	if c.TxQLen != nil {
		n := link.Attrs().TxQLen
		s.TxQLen = &n
	}
	return s
}

// backupPath names the file; id and ifName are validated names.
func backupPath(dataDir, id, ifName string) string {
	return filepath.Join(dataDir, id+"_"+ifName+".json")
}

// save writes a backup, completely or not at all.
func (s saved) save(path string) error {
	data, err := json.MarshalIndent(s, "", " ")
	if err != nil {
		return fmt.Errorf("encode backup: %w", err)
	}
	if err := durable.MakeDir(filepath.Dir(path)); err != nil {
		return fmt.Errorf("failed to create backup directory: %w", err)
	}
	if err := durable.Write(path, data); err != nil {
		return fmt.Errorf("write backup: %w", err)
	}
	return nil
}

// loadSaved reads a backup. A missing, empty or torn file holds nothing.
func loadSaved(path string) (s saved, err error) {
	if err := durable.CheckDir(filepath.Dir(path)); err != nil {
		return s, fmt.Errorf("read backup: %w", err)
	}
	data, err := durable.Read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, fmt.Errorf("read backup: %w", err)
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return saved{}, fmt.Errorf("read backup %s: %w", path, err)
	}
	return s, nil
}

func removeFile(path string) error {
	if err := durable.CheckDir(filepath.Dir(path)); err != nil {
		return fmt.Errorf("remove backup: %w", err)
	}
	if err := durable.Remove(path); err != nil {
		return fmt.Errorf("remove backup: %w", err)
	}
	return nil
}
