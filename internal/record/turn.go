// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/claim"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/spec"
)

const (
	turnBytes   = 1024     // bytes of directory entries that Suspects reads; about twenty records
	suspectSize = 64 << 10 // bytes of a record that Suspects reads; an attachment with a larger record also has a smaller one
)

// Suspects examines the next few attachments of a network, by one record of each. It returns the
// attachments of Kubernetes pods whose namespace was in dir and no longer exists. If the namespace
// exists, the function suspect decides; its argument says whether the record names the containerd that
// called the ADD. A suspect may still be alive, so the caller must judge it. Each call, in any process,
// continues where the last call ended, so the calls go through the whole directory again and again. No
// call lists the whole directory. Suspects also removes claims of killed gcs that it meets.
func (d *Dir) Suspects(network, dir string, most int, suspect func(id spec.AttachmentKey, named bool) bool) (owners []owner.Key, err error) {
	if err := d.Guard(claim.Attachments, network); err != nil {
		return nil, fmt.Errorf("look at records: %w", err)
	}
	records := filepath.Join(d.Path, claim.Attachments, network)
	names, err := d.turn(network, records, most)
	for _, name := range names {
		path := filepath.Join(records, name)
		if strings.HasSuffix(name, claim.Suffix) {
			d.SweepClaim(path)
		} else if isSuspect(path, dir, suspect) {
			owners = append(owners, owner.Key(name[:owner.Len]))
		}
	}
	return owners, err
}

// turn returns the next entries of a directory: claims, and one record of each owner, for at most
// this many owners.
func (d *Dir) turn(network, records string, most int) (names []string, err error) {
	dir, err := durable.Open(records, unix.O_RDONLY|unix.O_DIRECTORY)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look at records: %w", err)
	}
	defer unix.Close(dir) //nolint:errcheck // read only
	file, err := d.openTurn(network)
	if err != nil {
		return nil, fmt.Errorf("look at records: %w", err)
	}
	defer unix.Close(file) //nolint:errcheck // a torn number starts over
	was := position(file)
	entries := entriesAt(dir, was)
	if len(entries) == 0 && was != 0 {
		entries = entriesAt(dir, 0)
	}
	names, now := choose(entries, most)
	if now != was {
		_, err = unix.Pwrite(file, fmt.Appendf(nil, positionFormat, now), 0)
	}
	return names, err
}

func (d *Dir) openTurn(network string) (fd int, err error) {
	const flags = unix.O_RDWR | unix.O_CREAT | unix.O_NOFOLLOW | unix.O_NONBLOCK
	if err := d.Guard(claim.Turns); err != nil {
		return -1, err
	}
	fd, err = durable.Open(d.TurnPath(network), flags)
	if !errors.Is(err, fs.ErrNotExist) {
		return fd, err
	}
	if err := durable.MakeDir(d.Path, claim.Turns); err != nil {
		return -1, err
	}
	return durable.Open(d.TurnPath(network), flags)
}

// positionFormat has a fixed width, so that one position overwrites the last one completely.
const positionFormat = "%020d"

func position(file int) int64 {
	var text [20]byte
	n, _ := unix.Pread(file, text[:], 0)
	at, err := strconv.ParseInt(string(text[:max(n, 0)]), 10, 64)
	if err != nil {
		return 0
	}
	return at
}

// entry is an entry of a directory; next is the position after it.
type entry struct {
	name string
	next int64
}

// entriesAt reads the entries at a position. The kernel's layout is struct linux_dirent64.
func entriesAt(dir int, at int64) (list []entry) {
	if _, err := unix.Seek(dir, at, unix.SEEK_SET); err != nil {
		return nil
	}
	buf := make([]byte, turnBytes)
	n, err := unix.Getdents(dir, buf)
	if err != nil {
		return nil
	}
	const head = 19 // inode, position, length, type
	for buf = buf[:n]; len(buf) > head; {
		length := int(binary.NativeEndian.Uint16(buf[16:]))
		if length <= head || length > len(buf) {
			break
		}
		name, _, _ := bytes.Cut(buf[head:length], []byte{0})
		list = append(list, entry{string(name), int64(binary.NativeEndian.Uint64(buf[8:]))}) //nolint:gosec // the kernel's own number
		buf = buf[length:]
	}
	return list
}

// choose returns the claims and the first record of each owner, for at most this many owners. It
// also returns the position behind the last entry that it used.
func choose(entries []entry, most int) (names []string, at int64) {
	var owners []string
	for _, e := range entries {
		key, _, _ := strings.Cut(e.name, ".")
		switch {
		case !owner.Key(key).Valid(), slices.Contains(owners, key):
		case strings.HasSuffix(e.name, claim.Suffix):
			names = append(names, e.name)
		case durable.IsTemp(e.name):
		case len(owners) == most:
			return names, at
		default:
			owners, names = append(owners, key), append(names, e.name)
		}
		at = e.next
	}
	return names, at
}

// isSuspect reports whether a record belongs to a pod whose namespace was in dir and no longer exists, or
// is suspect according to the function suspect. It compares the text that encode writes, because decoding
// would cost a process 0.2 ms for its first record.
func isSuspect(path, dir string, suspect func(spec.AttachmentKey, bool) bool) bool {
	data, err := durable.ReadUpTo(path, suspectSize)
	if err != nil {
		return false
	}
	at, rest := after(data, `"netns":"`)
	if at == "" || filepath.Dir(at) != dir || !bytes.Contains(rest, []byte(`"pod":"`)) {
		return false
	}
	var now unix.Stat_t
	if unix.Stat(at, &now) != nil || !bytes.Contains(rest, fmt.Appendf(nil, `"netnsMark":{"dev":%d,"ino":%d,"since":%d,`, now.Dev, now.Ino, now.Ctim.Nano())) {
		return true
	}
	id, rest := after(data, `"containerID":"`)
	ifName, rest := after(rest, `"ifname":"`)
	return suspect(spec.AttachmentKey{ContainerID: id, IfName: ifName}, bytes.Contains(rest, []byte(`"caller":{`)))
}

// after returns the text between key and the next quote, and what follows.
func after(data []byte, key string) (value string, rest []byte) {
	_, rest, _ = bytes.Cut(data, []byte(key))
	text, rest, found := bytes.Cut(rest, []byte(`"`))
	if !found {
		return "", nil
	}
	return string(text), rest
}
