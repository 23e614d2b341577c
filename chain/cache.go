// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/spec"
)

// cacheKind marks libcni's format.
const cacheKind = "cniCacheV1"

// ErrNotCached reports that no result of an attachment is cached.
var ErrNotCached = errors.New("no cached configuration")

// ErrBrokenCache is wrapped when a cached result exists and cannot be used: a power loss
// cut the write short, or the file is another attachment's.
var ErrBrokenCache = errors.New("broken cached result")

// cacheFile is libcni's JSON.
type cacheFile struct {
	Kind         string          `json:"kind"`
	ContainerID  string          `json:"containerId"`
	Config       []byte          `json:"config"`
	IfName       string          `json:"ifName"`
	Network      string          `json:"networkName"`
	NetNS        string          `json:"netns,omitempty"`
	Args         [][2]string     `json:"cniArgs,omitempty"`
	Capabilities map[string]any  `json:"capabilityArgs,omitempty"`
	Result       json.RawMessage `json:"result,omitempty"`
}

// Cached is the cached state of an attachment after its ADD.
type Cached struct {
	Attachment
	Network string
	Config  []byte       // the list of the ADD; empty in results of old runtimes
	Result  *spec.Result // nil when it cannot be read
	Since   time.Time    // of the ADD
}

// Pod is "namespace/name" of the Kubernetes pod that the ADD was for, or empty.
func (c *Cached) Pod() string {
	var args []spec.Arg
	for _, a := range c.Args {
		args = append(args, spec.Arg{Key: a[0], Value: a[1]})
	}
	return spec.Pod(args)
}

func (c *Cached) key() spec.Attachment {
	return spec.Attachment{ContainerID: c.ContainerID, IfName: c.IfName}
}

// fill sets the fields of a that the caller of DEL or CHECK left empty. An empty map counts
// as nil: a CHECK without a published port would not see that the port is dead, and a
// foreign portmap would leak a port that its DEL does not name.
func (c *Cached) fill(a *Attachment) {
	if len(a.Args) == 0 {
		a.Args = c.Args
	}
	if len(a.Capabilities) == 0 {
		a.Capabilities = c.Capabilities
	}
}

// list is the configuration of the ADD, or def when it cannot be read.
func (c *Cached) list(def *List) *List {
	l, err := ParseList(c.Config)
	if err != nil || l.Name != c.Network || len(l.Plugins) == 0 {
		return def
	}
	return l
}

// cacheName is libcni's file name. It is ambiguous, since all three parts may contain '-',
// so the content decides.
func cacheName(network string, a *Attachment) string {
	return network + "-" + a.ContainerID + "-" + a.IfName
}

func fileNameFits(name string) error {
	const most = 255 // NAME_MAX
	if len(name) > most {
		return spec.Errorf(spec.CodeInvalidEnvironment, "network name, container ID and interface name are too long together").
			WithDetails("the result could not be cached: %d bytes, at most %d", len(name), most)
	}
	return nil
}

// guard refuses a directory of results that other users can write to.
func (rt *Runtime) guard() error {
	if err := durable.CheckDir(or(rt.CacheDir, DefaultCacheDir), "results"); err != nil {
		return fmt.Errorf("cached results: %w", err)
	}
	return nil
}

// write caches a result: complete or not at all, readable by root alone. It does not sync
// to disk: after a power loss the container is gone too, and every verb accepts a torn file
// (docs/adr/0005).
func (rt *Runtime) write(list *List, a *Attachment, result *spec.Result) error {
	c := cacheFile{
		Kind: cacheKind, ContainerID: a.ContainerID, Config: list.Bytes, IfName: a.IfName, Network: list.Name,
		NetNS: a.NetNS, Args: a.Args, Capabilities: a.Capabilities,
	}
	if result != nil {
		var err error
		if c.Result, err = result.Encode(list.CNIVersion); err != nil {
			return err
		}
	}
	data, err := json.Marshal(&c)
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	if err := durable.MakeDir(or(rt.CacheDir, DefaultCacheDir), "results"); err != nil {
		return err
	}
	return replace(filepath.Join(rt.results(), cacheName(list.Name, a)), data)
}

// replace writes a file through a temporary one. The container's lock makes the temporary
// file ours; after a kill the next try, or DEL, deletes it. A GC of another network may
// delete it as a leftover.
func replace(path string, data []byte) (err error) {
	for range 3 {
		if err = replaceOnce(path, data); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return err
}

func replaceOnce(path string, data []byte) error {
	tmp := temporary(path)
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		return errors.Join(err, remove(tmp))
	}
	return nil
}

// temporary is beside the directory of the results, so that it is never read as one, and
// short whatever the names are.
func temporary(path string) string {
	sum := sha256.Sum256([]byte(filepath.Base(path)))
	return filepath.Join(filepath.Dir(filepath.Dir(path)), temporaryPrefix+hex.EncodeToString(sum[:8]))
}

const temporaryPrefix = ".result-"

// sweepTemporary deletes the files of killed ADDs: a newer file is being written.
func (rt *Runtime) sweepTemporary(before time.Time) error {
	left, err := filepath.Glob(filepath.Join(filepath.Dir(rt.results()), temporaryPrefix+"*"))
	if err != nil {
		return err
	}
	errs := make([]error, len(left))
	for i, path := range left {
		if fi, err := os.Lstat(path); err == nil && fi.ModTime().Before(before) {
			errs[i] = remove(path)
		}
	}
	return errors.Join(errs...)
}

// read returns the cached state of an attachment, nil when there is none.
func (rt *Runtime) read(network string, a *Attachment) (*Cached, error) {
	if err := rt.guard(); err != nil {
		return nil, err
	}
	path := filepath.Join(rt.results(), cacheName(network, a))
	c, err := readFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case c.Network == "": // the bare result of an old runtime
		c.Network, c.ContainerID, c.IfName = network, a.ContainerID, a.IfName
	case c.Network != network || c.ContainerID != a.ContainerID || c.IfName != a.IfName:
		return nil, fmt.Errorf("read %s: %w: it belongs to %s/%s on network %s", path, ErrBrokenCache, c.ContainerID, c.IfName, c.Network)
	}
	return c, nil
}

func readFile(path string) (*Cached, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ELOOP) {
		return nil, fmt.Errorf("read %s: %w: a symbolic link", path, ErrBrokenCache)
	}
	if err != nil {
		return nil, fmt.Errorf("read cached result: %w", err)
	}
	defer f.Close() //nolint:errcheck // read only
	fi, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("read cached result: %w", err)
	}
	if !fi.Mode().IsRegular() {
		return nil, fmt.Errorf("read %s: %w: %v", path, ErrBrokenCache, fi.Mode())
	}
	data, err := io.ReadAll(f)
	if err != nil {
		return nil, fmt.Errorf("read cached result: %w", err)
	}
	c, err := decode(data)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w: %w", path, ErrBrokenCache, err)
	}
	c.Since = fi.ModTime()
	return c, nil
}

// decode reads libcni's format and the bare result of libcni before 0.8.
func decode(data []byte) (*Cached, error) {
	if len(data) == 0 {
		return nil, errors.New("the file is empty")
	}
	var f cacheFile
	if err := json.Unmarshal(data, &f); err != nil || f.Kind != cacheKind {
		result, rerr := spec.ParseResult(data, "")
		if rerr != nil {
			return nil, errors.Join(err, rerr)
		}
		return &Cached{Result: result}, nil
	}
	if f.Network == "" || f.ContainerID == "" || f.IfName == "" {
		return nil, errors.New("it names no attachment")
	}
	c := &Cached{Network: f.Network, Config: f.Config, Attachment: Attachment{
		ContainerID: f.ContainerID, NetNS: f.NetNS, IfName: f.IfName, Args: f.Args, Capabilities: f.Capabilities,
	}}
	if len(f.Result) > 0 && string(f.Result) != "null" {
		var err error
		if c.Result, err = spec.ParseResult(f.Result, ""); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// forget deletes the cached state of an attachment, even when it is broken, but not a file
// that belongs to another attachment.
func (rt *Runtime) forget(network string, a *Attachment) error {
	if err := rt.guard(); err != nil {
		return err
	}
	path := filepath.Join(rt.results(), cacheName(network, a))
	if err := remove(temporary(path)); err != nil {
		return err
	}
	c, err := readFile(path)
	other := err == nil && c.Network != "" && (c.Network != network || c.ContainerID != a.ContainerID)
	if other {
		return nil
	}
	return remove(path)
}

// remove deletes a file; a missing one is no error.
func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("delete cached result: %w", err)
	}
	return nil
}

// Cached returns the cached state of an attachment, nil when there is none.
func (rt *Runtime) Cached(network string, a Attachment) (*Cached, error) {
	if err := a.validate(&List{Name: network}); err != nil {
		return nil, err
	}
	return rt.read(network, &a)
}

// Attachments lists the cached attachments of one container or of all (""), sorted by file
// name. Errors of files that cannot be read are joined and returned beside the others.
func (rt *Runtime) Attachments(containerID string) (list []Cached, err error) {
	if err := rt.guard(); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(rt.results())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list cached results: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if containerID != "" && !strings.Contains(e.Name(), "-"+containerID+"-") {
			continue
		}
		c, err := readFile(filepath.Join(rt.results(), e.Name()))
		switch {
		case errors.Is(err, fs.ErrNotExist): // deleted meanwhile
		case err != nil:
			errs = append(errs, err)
		case c.Network != "" && (containerID == "" || c.ContainerID == containerID):
			list = append(list, *c)
		}
	}
	return list, errors.Join(errs...)
}

// sweepAge is how old a broken file must be before GC deletes it: libcni does
// not write atomically, so a young one may be half written.
const sweepAge = time.Minute

// sweep deletes the broken files of a network whose attachments are not valid. Their
// content is lost already.
func (rt *Runtime) sweep(k *Keep) error {
	entries, err := os.ReadDir(rt.results())
	if err != nil || rt.guard() != nil {
		return nil //nolint:nilerr // Attachments has reported it
	}
	valid := map[string]bool{}
	for _, v := range k.Valid {
		valid[cacheName(k.List.Name, &Attachment{ContainerID: v.ContainerID, IfName: v.IfName})] = true
	}
	var errs []error
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), k.List.Name+"-") || valid[e.Name()] {
			continue
		}
		path := filepath.Join(rt.results(), e.Name())
		if _, err := readFile(path); errors.Is(err, ErrBrokenCache) && olderThan(e, sweepAge) {
			errs = append(errs, os.Remove(path))
		}
	}
	return errors.Join(errs...)
}

func olderThan(e fs.DirEntry, age time.Duration) bool {
	fi, err := e.Info()
	return err == nil && time.Since(fi.ModTime()) > age
}

// trueKeys returns the keys whose value is true, sorted.
func trueKeys(set map[string]bool) []string {
	maps.DeleteFunc(set, func(_ string, on bool) bool { return !on })
	return slices.Sorted(maps.Keys(set))
}
