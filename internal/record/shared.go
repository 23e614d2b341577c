// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/owner"
)

const (
	shared   = "shared"
	refs     = "refs"
	factFile = "fact.json"
)

// Fact is a firewall fact that several attachments share, such as the masquerade of a
// subnet. It exists as long as it has a holder.
type Fact struct {
	Name     string        `json:"name"` // kind and subject, such as masq-10.88.0.0/16
	Elements []nft.Element `json:"elements,omitempty"`

	// Accepts are subnets accepted where an iptables-nft FORWARD drops, behind the
	// operator's AdminChain: on the Bridge, only Inside it, or from any link.
	Accepts    []netip.Prefix `json:"accepts,omitempty"`
	Bridge     string         `json:"bridge,omitempty"`
	Inside     bool           `json:"inside,omitempty"`
	AdminChain string         `json:"adminChain,omitempty"`

	// Conditions is the network's own chain and maps for published ports. A
	// fact of conditions has no elements: they belong to the attachments.
	Conditions *nft.Conditions `json:"conditions,omitempty"`

	// Before are the host's sysctls that go with the fact, with their earlier values: the
	// last holder to go restores them.
	Before map[string]string `json:"before,omitempty"`
}

// factDir is the fact's directory; the name is encoded so that the path stays inside.
func (s *Store) factDir(name string) string {
	return filepath.Join(s.Dir, shared, hex.EncodeToString([]byte(name)))
}

// Hold notes that o uses f. It comes before the elements are (re-)added, so that no
// process that counts references can remove them afterwards. The first holder calls begin
// with the fact, under the lock, before the fact is written: earlier settings can be read
// only while no last holder restores them.
func (s *Store) Hold(ctx context.Context, f Fact, o owner.Key, begin func(*Fact) error) error {
	dir := s.factDir(f.Name)
	ref := filepath.Join(dir, refs, string(o))
	return s.locked(ctx, dir, func() error {
		fresh, err := writeFact(dir, f, begin)
		if err == nil {
			err = hold(dir, ref)
		}
		if err == nil {
			return nil
		}
		if fresh {
			err = errors.Join(err, forget(dir))
		}
		removeEmpty(dir)
		return fmt.Errorf("hold %s: %w", f.Name, err)
	})
}

// forget removes a fact that was just written and has no holder: nothing of it is in the
// kernel yet.
func forget(dir string) error {
	removeEmpty(filepath.Join(dir, refs))
	if _, err := os.Lstat(filepath.Join(dir, refs)); err == nil {
		return nil
	}
	return durable.Remove(filepath.Join(dir, factFile))
}

func hold(dir, ref string) error {
	if err := os.Mkdir(filepath.Join(dir, refs), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return touch(ref)
}

// Release drops o's use of the fact called name. The last holder calls remove with the
// fact, under the lock. Its reference goes only after that, so when remove fails, or the
// process is killed, the next DEL or GC tries again. A killed process can leave a fact
// without a holder: any caller of Release removes it, with an empty o if it never held the
// fact.
func (s *Store) Release(ctx context.Context, name string, o owner.Key, remove func(Fact) error) error {
	dir := s.factDir(name)
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return s.locked(ctx, dir, func() error {
		ref := filepath.Join(dir, refs, string(o))
		others, err := heldByOthers(filepath.Join(dir, refs), string(o))
		if err == nil && !others {
			err = removeFact(dir, name, remove)
		}
		if err != nil {
			return fmt.Errorf("release %s: %w", name, err)
		}
		if o != "" {
			err = durable.Remove(ref)
		}
		if err != nil {
			return fmt.Errorf("release %s: %w", name, err)
		}
		if others {
			return nil
		}
		removeEmpty(filepath.Join(dir, refs))
		err = durable.Remove(filepath.Join(dir, factFile))
		removeEmpty(dir)
		return err
	})
}

// heldByOthers reads two entries at most, even of a large directory.
func heldByOthers(dir, own string) (bool, error) {
	fd, err := durable.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	f := os.NewFile(uintptr(fd), dir)
	defer f.Close() //nolint:errcheck // read only
	names, err := f.Readdirnames(2)
	if err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	return slices.ContainsFunc(names, func(n string) bool { return n != own }), nil
}

// removeFact calls remove with the fact, as far as it is readable.
func removeFact(dir, name string, remove func(Fact) error) error {
	f, err := readFact(dir)
	switch {
	case errors.Is(err, ErrBroken):
		f = Fact{Name: name} // its elements are unknown: GC finds what no fact names
	case errors.Is(err, fs.ErrNotExist):
		return nil // killed before it was written: nothing was added either
	case err != nil:
		return err
	}
	return remove(f)
}

// touch creates an empty file, or keeps an existing one.
func touch(path string) error {
	fd, err := durable.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_NONBLOCK)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// writeFact stores a fact unless it exists: the name determines the content, which never
// changes, and files appear whole.
func writeFact(dir string, f Fact, begin func(*Fact) error) (fresh bool, err error) {
	if fi, err := os.Lstat(filepath.Join(dir, factFile)); err == nil && fi.Mode().IsRegular() && fi.Size() > 0 {
		return false, nil
	}
	if begin != nil {
		if err := begin(&f); err != nil {
			return false, err
		}
	}
	data, err := encode(&f)
	if err != nil {
		return false, err
	}
	return true, durable.Write(filepath.Join(dir, factFile), data)
}

func readFact(dir string) (f Fact, err error) {
	data, err := durable.Read(filepath.Join(dir, factFile))
	if err != nil && !errors.Is(err, durable.ErrIrregular) {
		return f, err
	}
	if err == nil {
		err = json.Unmarshal(data, &f)
	}
	if err != nil {
		return f, fmt.Errorf("read fact %s: %w: %w", dir, ErrBroken, err)
	}
	return f, nil
}

// Fact reads the fact called name.
func (s *Store) Fact(name string) (Fact, error) { return readFact(s.factDir(name)) }

// factDirs lists the directories of all facts.
func (s *Store) factDirs() (dirs []string, err error) {
	if err := s.guard(shared); err != nil {
		return nil, fmt.Errorf("list facts: %w", err)
	}
	entries, err := os.ReadDir(filepath.Join(s.Dir, shared))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list facts: %w", err)
	}
	for _, e := range entries {
		if e.IsDir() { // not a symbolic link
			dirs = append(dirs, filepath.Join(s.Dir, shared, e.Name()))
		}
	}
	return dirs, nil
}

// Others lists all facts but the one called name. It skips those that cannot be read:
// Facts reports them.
func (s *Store) Others(name string) (facts []Fact) {
	dirs, err := s.factDirs()
	if err != nil {
		return nil
	}
	for _, dir := range dirs {
		f, err := readFact(dir)
		if err == nil && f.Name != name {
			facts = append(facts, f)
		}
	}
	return facts
}

// Facts lists every shared fact with its holders.
func (s *Store) Facts() (map[string][]owner.Key, []Fact, error) {
	dirs, err := s.factDirs()
	if err != nil {
		return nil, nil, err
	}
	holders := make(map[string][]owner.Key)
	var facts []Fact
	var errs []error
	for _, dir := range dirs {
		f, err := readFact(dir)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		facts = append(facts, f)
		names, err := os.ReadDir(filepath.Join(dir, refs))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		for _, n := range names {
			holders[f.Name] = append(holders[f.Name], owner.Key(n.Name()))
		}
	}
	return holders, facts, errors.Join(errs...)
}

// locked makes and locks the fact's directory and runs fn. The lock is on the directory
// itself; if the holder removes it, the waiter starts over. A process that hangs blocks
// only this fact's users, for a limited time (durable.WithLockLimit).
func (s *Store) locked(ctx context.Context, dir string, fn func() error) error {
	if err := s.guard(shared, filepath.Base(dir), refs); err != nil {
		return fmt.Errorf("open fact directory: %w", err)
	}
	for {
		fd, err := durable.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY)
		if errors.Is(err, fs.ErrNotExist) {
			if err := os.MkdirAll(dir, 0o700); err != nil {
				return fmt.Errorf("make fact directory: %w", err)
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("open fact directory: %w", err)
		}
		again, err := lockAndRun(ctx, fd, dir, fn)
		err = errors.Join(err, unix.Close(fd))
		if !again || err != nil {
			return err
		}
	}
}

func lockAndRun(ctx context.Context, fd int, dir string, fn func() error) (again bool, err error) {
	if err := lockFact(ctx, fd); err != nil {
		name, _ := hex.DecodeString(filepath.Base(dir))
		return false, fmt.Errorf("lock fact %s, %s: %w", name, dir, err)
	}
	if !isAt(fd, dir) {
		return true, nil
	}
	return false, fn()
}

func lockFact(ctx context.Context, fd int) error {
	ctx, cancel := durable.WithLockLimit(ctx)
	defer cancel()
	return durable.LockExclusive(ctx, fd)
}

// Held lists the names of the facts that o holds, without reading them: for a
// DEL that has lost its record.
func (s *Store) Held(o owner.Key) (names []string, err error) {
	dirs, err := s.factDirs()
	if err != nil {
		return nil, err
	}
	for _, dir := range dirs {
		name, err := hex.DecodeString(filepath.Base(dir))
		if err != nil {
			continue // not one of ours
		}
		if _, err := os.Lstat(filepath.Join(dir, refs, string(o))); err == nil {
			names = append(names, string(name))
		}
	}
	return names, nil
}

// Holds reports whether o has a reference to the fact called name.
func (s *Store) Holds(name string, o owner.Key) bool {
	_, err := os.Lstat(s.Reference(name, o))
	return err == nil
}

// Reference is the path of o's reference to the fact called name.
func (s *Store) Reference(name string, o owner.Key) string {
	return filepath.Join(s.factDir(name), refs, string(o))
}

// Stands reports whether the fact called name has a holder.
func (s *Store) Stands(name string) bool {
	yes, _ := heldByOthers(filepath.Join(s.factDir(name), refs), "")
	return yes
}

// InternalFact is the name of the fact that the host forwards nothing from or to a link,
// which is the bridge of an internal network.
func InternalFact(link string) string { return "internal-" + link }

// WhileHeld runs fn with the fact called name, under its lock, so that the last holder
// cannot remove it meanwhile. It does nothing for a fact without a holder.
func (s *Store) WhileHeld(ctx context.Context, name string, fn func(Fact) error) error {
	dir := s.factDir(name)
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return s.locked(ctx, dir, func() error {
		holders, err := os.ReadDir(filepath.Join(dir, refs))
		if errors.Is(err, fs.ErrNotExist) || err == nil && len(holders) == 0 {
			removeEmpty(dir) // released before the lock, which made the directory anew
			return nil
		}
		if err != nil {
			return fmt.Errorf("read holders of %s: %w", name, err)
		}
		f, err := readFact(dir)
		if err != nil {
			return err
		}
		return fn(f)
	})
}
