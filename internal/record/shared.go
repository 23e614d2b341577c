// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/claim"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/flock"
	"github.com/patchbay-net/patchbay/internal/lightjson"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/owner"
)

const (
	shared   = "shared"
	refs     = "refs"
	factFile = "fact.json"
)

// Fact is firewall state that several attachments share, such as the masquerade of a subnet. A
// fact exists as long as it has a holder.
type Fact struct {
	Name     string        `json:"name"` // kind and subject, such as masq-10.88.0.0/16
	Elements []nft.Element `json:"elements,omitempty"`

	// Accepts lists subnets whose traffic is accepted if an iptables-nft FORWARD chain drops
	// packets. The rules of the operator's AdminChain come first. If Bridge is set, the subnets are
	// accepted only on that bridge. If Inside is set too, they are accepted only between the
	// bridge's ports. With Open,
	// new connections to the subnets are accepted too.
	Accepts    []netip.Prefix `json:"accepts,omitempty"`
	Bridge     string         `json:"bridge,omitempty"`
	Inside     bool           `json:"inside,omitempty"`
	Open       bool           `json:"open,omitempty"`
	AdminChain string         `json:"adminChain,omitempty"`

	// Conditions are the network's own chain and maps for published ports. Such a fact has no
	// elements, because the elements belong to the attachments.
	Conditions *nft.Conditions `json:"conditions,omitempty"`

	// FastPath lists devices of the flowtable. Flows that enter through them can skip the firewall.
	FastPath []string `json:"fastPath,omitempty"`

	// Before has the earlier values of the host's sysctls that belong to the fact. The last
	// holder restores them.
	Before map[string]string `json:"before,omitempty"`
}

// factDir returns the directory of a fact. The name is encoded, so the path cannot leave the
// store.
func (d *Dir) factDir(name string) string {
	return filepath.Join(d.Path, shared, hex.EncodeToString([]byte(name)))
}

// Hold makes o a holder of f. A caller calls Hold before it adds the elements. Otherwise another
// process could find no holder and remove the elements. For the first holder, Hold calls begin
// with the fact before it writes the fact. Hold has the fact's lock then: begin may read earlier
// settings, which no last holder may restore at the same time.
func (d *Dir) Hold(ctx context.Context, f Fact, o owner.Key, begin func(*Fact) error) error {
	dir := d.factDir(f.Name)
	ref := filepath.Join(dir, refs, string(o))
	return d.locked(ctx, dir, func() error {
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
		claim.RemoveEmpty(dir)
		return fmt.Errorf("hold %s: %w", f.Name, err)
	})
}

// forget removes a fact that was just written and has no holder. Nothing of it is in the
// kernel yet.
func forget(dir string) error {
	claim.RemoveEmpty(filepath.Join(dir, refs))
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

// Release removes o from the holders of a fact. If o is the last holder, Release calls remove
// with the fact, under the fact's lock. Only after remove succeeded does Release delete the
// holder. So if remove fails or the process is killed, the next DEL or GC tries again. A killed
// process may leave a fact without a holder. Any call of Release removes such a fact. A caller
// that is no holder passes an empty o.
func (d *Dir) Release(ctx context.Context, name string, o owner.Key, remove func(Fact) error) error {
	dir := d.factDir(name)
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return d.locked(ctx, dir, func() error {
		ref := filepath.Join(dir, refs, string(o))
		unlock, err := lockReference(ctx, ref)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("release %s: %w", name, err)
		}
		defer unlock()
		others, err := hasOtherHolder(filepath.Join(dir, refs), string(o))
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
		claim.RemoveEmpty(filepath.Join(dir, refs))
		err = durable.Remove(filepath.Join(dir, factFile))
		claim.RemoveEmpty(dir)
		return err
	})
}

// hasOtherHolder reports whether the fact has another holder. hasOtherHolder reads at most two
// entries, even of a large directory.
func hasOtherHolder(dir, own string) (bool, error) {
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

// removeFact calls remove with the fact, as far as the fact can be read.
func removeFact(dir, name string, remove func(Fact) error) error {
	f, err := readFact(dir)
	switch {
	case errors.Is(err, ErrBroken):
		f = Fact{Name: name} // its elements are not known; GC removes elements that no fact names
	case errors.Is(err, fs.ErrNotExist):
		return nil // the ADD was killed before it wrote the fact, so it added no elements
	case err != nil:
		return err
	}
	return remove(f)
}

// touch creates an empty file. touch keeps an existing file.
func touch(path string) error {
	fd, err := durable.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_NONBLOCK)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// writeFact stores a fact unless it exists. An existing fact has the same content, because the
// name determines it. Readers always see a complete file.
func writeFact(dir string, f Fact, begin func(*Fact) error) (fresh bool, err error) {
	if fi, err := os.Lstat(filepath.Join(dir, factFile)); err == nil && fi.Mode().IsRegular() && fi.Size() > 0 {
		return false, nil
	}
	if begin != nil {
		if err := begin(&f); err != nil {
			return false, err
		}
	}
	data, err := lightjson.Marshal(&f)
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
		err = lightjson.Unmarshal(data, &f)
	}
	if err != nil {
		return f, fmt.Errorf("read fact %s: %w: %w", dir, ErrBroken, err)
	}
	return f, nil
}

// Fact reads a fact by its name.
func (d *Dir) Fact(name string) (Fact, error) { return readFact(d.factDir(name)) }

// factDirs lists the directories of all facts.
func (d *Dir) factDirs() (dirs []string, err error) {
	if err := d.Guard(shared); err != nil {
		return nil, fmt.Errorf("list facts: %w", err)
	}
	entries, err := os.ReadDir(filepath.Join(d.Path, shared))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list facts: %w", err)
	}
	for _, e := range entries {
		if e.IsDir() { // not a symbolic link
			dirs = append(dirs, filepath.Join(d.Path, shared, e.Name()))
		}
	}
	return dirs, nil
}

// Others lists all facts except the one with this name. Others skips facts that cannot be
// read; Facts reports them.
func (d *Dir) Others(name string) (facts []Fact) {
	dirs, err := d.factDirs()
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

// Facts lists every fact with its holders.
func (d *Dir) Facts() (map[string][]owner.Key, []Fact, error) {
	dirs, err := d.factDirs()
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

// makeFact makes a fact's directory. If another process removes the directory meanwhile, MkdirAll
// can fail with EEXIST. Then makeFact tries again.
func makeFact(dir string) error {
	err := durable.Mkdir(dir)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	if existing, lookErr := os.Lstat(dir); lookErr == nil && !existing.IsDir() {
		return err
	}
	return nil
}

// locked makes the fact's directory, locks it and runs fn. If another process removes the
// directory while locked waits, locked starts again. A process that hangs blocks only users of
// this fact, and only for a limited time (durable.WithLockLimit).
func (d *Dir) locked(ctx context.Context, dir string, fn func() error) error {
	if err := d.Guard(shared, filepath.Base(dir), refs); err != nil {
		return fmt.Errorf("open fact directory: %w", err)
	}
	for {
		fd, err := durable.LockAt(ctx, dir, flock.Options{})
		if err == nil {
			return runAndClose(fd, fn)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			name, _ := hex.DecodeString(filepath.Base(dir))
			return fmt.Errorf("lock fact %s, %s: %w", name, dir, err)
		}
		if err := makeFact(dir); err != nil {
			return fmt.Errorf("make fact directory: %w", err)
		}
	}
}

// runAndClose closes fd, also if fn panics.
func runAndClose(fd int, fn func() error) (err error) {
	defer func() { err = errors.Join(err, unix.Close(fd)) }()
	return fn()
}

// FactsOf lists the names of the facts that o holds, without reading the facts. FactsOf is for a
// DEL whose record is lost.
func (d *Dir) FactsOf(o owner.Key) (names []string, err error) {
	dirs, err := d.factDirs()
	if err != nil {
		return nil, err
	}
	for _, dir := range dirs {
		name, err := hex.DecodeString(filepath.Base(dir))
		if err != nil {
			continue // not the name of a fact
		}
		if _, err := os.Lstat(filepath.Join(dir, refs, string(o))); err == nil {
			names = append(names, string(name))
		}
	}
	return names, nil
}

// Holds reports whether o holds the fact with this name.
func (d *Dir) Holds(name string, o owner.Key) bool {
	_, err := os.Lstat(d.Reference(name, o))
	return err == nil
}

// Reference returns the path of the file that makes o a holder of the fact.
func (d *Dir) Reference(name string, o owner.Key) string {
	return filepath.Join(d.factDir(name), refs, string(o))
}

// HasHolder reports whether the fact with this name has a holder.
func (d *Dir) HasHolder(name string) bool {
	yes, _ := hasOtherHolder(filepath.Join(d.factDir(name), refs), "")
	return yes
}

// WithFact runs fn with a fact under the fact's lock, so that the last holder cannot remove
// the fact meanwhile. It does nothing if the fact has no holder.
func (d *Dir) WithFact(ctx context.Context, name string, fn func(Fact) error) error {
	dir := d.factDir(name)
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return d.locked(ctx, dir, func() error {
		holders, err := os.ReadDir(filepath.Join(dir, refs))
		if errors.Is(err, fs.ErrNotExist) || err == nil && len(holders) == 0 {
			claim.RemoveEmpty(dir) // the fact was released before we had the lock, and our lock made the directory again
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
