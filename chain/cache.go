// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package chain

import (
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
	"github.com/patchbay-net/patchbay/internal/results"
	"github.com/patchbay-net/patchbay/spec"
)

// ErrNotCached means that the cache has no configuration of the attachment.
var ErrNotCached = errors.New("no cached configuration")

// ErrBrokenCache means that a cache file exists but cannot be used. Either a power loss cut
// the write short, or the file belongs to another attachment.
var ErrBrokenCache = errors.New("broken cached result")

// CacheUnusable reports whether an error of DelCached means that the cache has no configuration of the ADD. Then a caller
// detaches with the network's file.
func CacheUnusable(err error) bool {
	return errors.Is(err, ErrNotCached) || errors.Is(err, ErrBrokenCache)
}

// Cached is the cached state of an attachment after its ADD.
type Cached struct {
	Attachment
	Network string
	Config  []byte       // the list's configuration at the ADD; empty if an old runtime wrote the file
	Result  *spec.Result // nil when it cannot be read
	Since   time.Time    // time of the ADD
}

// Pod returns "namespace/name" of the Kubernetes pod that the ADD served. Pod returns "" if
// the ADD served no pod.
func (c *Cached) Pod() string {
	var args []spec.Arg
	for _, a := range c.Args {
		args = append(args, spec.Arg{Key: a[0], Value: a[1]})
	}
	return spec.Pod(args)
}

// Place returns the path of the container's namespace, or "" if the cache names none. An older libcni, as in
// containerd 1.6, does not cache NetNS. Then the result names the namespace.
func (c *Cached) Place() string { return results.Place(c.NetNS, c.IfName, c.Result) }

func (c *Cached) key() spec.AttachmentKey {
	return spec.AttachmentKey{ContainerID: c.ContainerID, IfName: c.IfName}
}

// fill sets the fields of a that the caller of DEL or CHECK left empty. fill also replaces an
// empty map, because many callers pass one. Without the port mappings of the ADD, a CHECK would
// not notice a broken port, and another project's portmap would not remove the port at DEL.
func (c *Cached) fill(a *Attachment) {
	if len(a.Args) == 0 {
		a.Args = c.Args
	}
	if len(a.Capabilities) == 0 {
		a.Capabilities = c.Capabilities
	}
}

func cacheName(network string, a *Attachment) string {
	return results.Name(network, a.ContainerID, a.IfName)
}

func fileNameFits(name string) error {
	const most = 255 // NAME_MAX
	if len(name) > most {
		return spec.Errorf(spec.CodeInvalidEnvironment, "network name, container ID and interface name are too long together").
			WithDetails("the result could not be cached: %d bytes, at most %d", len(name), most)
	}
	return nil
}

// guard returns an error if other users can write to the directory of results.
func (rt *Runtime) guard() error {
	if err := durable.CheckDir(rt.cacheDir, results.Nested()); err != nil {
		return fmt.Errorf("cached results: %w", err)
	}
	return nil
}

// write caches a result in a file that only root can read. The file is either complete or absent.
// write does not sync to disk: a power loss ends the container too, and every verb accepts a file
// that was cut short (docs/adr/0005). The container's lock keeps other operations away from the temporary file.
// If the process is killed, the next ADD or DEL of the attachment deletes the temporary file, or a
// GC does (sweepTemporary).
func (rt *Runtime) write(list *List, a *Attachment, result *spec.Result) error {
	c := results.File{
		ContainerID: a.ContainerID, Config: list.Bytes, IfName: a.IfName, Network: list.Name,
		NetNS: a.NetNS, Args: a.Args, Capabilities: a.Capabilities,
	}
	if result != nil {
		var err error
		if c.Result, err = result.Encode(list.CNIVersion); err != nil {
			return err
		}
	}
	data, err := c.Encode()
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	if err := durable.MakeDir(rt.cacheDir, results.Nested()); err != nil {
		return err
	}
	path := filepath.Join(rt.results(), cacheName(list.Name, a))
	return durable.Put(path, data, durable.How{Temp: results.Temp(path)})
}

// sweepTemporary deletes temporary files that killed ADDs left behind. It keeps a file that was
// written after the time before, because an ADD may still be writing it.
func (rt *Runtime) sweepTemporary(before time.Time) error {
	stale, err := filepath.Glob(results.Temps(rt.cacheDir))
	if err != nil {
		return err
	}
	errs := make([]error, len(stale))
	for i, path := range stale {
		if fi, err := os.Lstat(path); err == nil && fi.ModTime().Before(before) {
			errs[i] = remove(path)
		}
	}
	return errors.Join(errs...)
}

// read returns the cached state of an attachment, or nil if the cache has none.
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
	case c.Network == "": // an old runtime wrote the bare result
		c.Network, c.ContainerID, c.IfName = network, a.ContainerID, a.IfName
	case c.Network != network || c.ContainerID != a.ContainerID || c.IfName != a.IfName:
		return nil, fmt.Errorf("read %s: %w: it belongs to %s/%s on network %s", path, ErrBrokenCache, c.ContainerID, c.IfName, c.Network)
	}
	return c, nil
}

// mayExist reports whether the cache has a result of an attachment, or a file in its place that cannot be read.
func (rt *Runtime) mayExist(network string, a *Attachment) bool {
	c, err := readFile(filepath.Join(rt.results(), cacheName(network, a)))
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR)
	}
	return c.Network == "" || c.Network == network && c.ContainerID == a.ContainerID && c.IfName == a.IfName
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

// decode reads a cache file. The file has libcni's format, or it is a bare result from libcni
// before 0.8.
func decode(data []byte) (*Cached, error) {
	if len(data) == 0 {
		return nil, errors.New("the file is empty")
	}
	f, ok, err := results.Decode(data)
	if !ok {
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
		if c.Result, err = spec.ParseResult(f.Result, ""); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// forget deletes the cache file of an attachment, even a broken one. forget keeps a file that
// belongs to another attachment.
func (rt *Runtime) forget(network string, a *Attachment) error {
	if err := rt.guard(); err != nil {
		return err
	}
	path := filepath.Join(rt.results(), cacheName(network, a))
	if err := remove(results.Temp(path)); err != nil {
		return err
	}
	c, err := readFile(path)
	other := err == nil && c.Network != "" && (c.Network != network || c.ContainerID != a.ContainerID)
	if other {
		return nil
	}
	return remove(path)
}

// remove deletes a file. remove accepts that the file is missing.
func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("delete cached result: %w", err)
	}
	return nil
}

// Cached returns the cached state of an attachment, or nil if the cache has none.
func (rt *Runtime) Cached(network string, a Attachment) (*Cached, error) {
	if err := a.validate(&List{Name: network}); err != nil {
		return nil, err
	}
	return rt.read(network, &a)
}

// Attachments lists the cached attachments of one container, or of all containers if
// containerID is "". Attachments sorts them by file name. If some files cannot be read, it
// returns the readable attachments together with the joined errors.
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

// trueKeys returns the keys whose value is true, sorted.
func trueKeys(set map[string]bool) []string {
	maps.DeleteFunc(set, func(_ string, on bool) bool { return !on })
	return slices.Sorted(maps.Keys(set))
}

// ParseCached reads a configuration from the cache. It is a list or, if libcni's AddNetwork made the
// attachment, the object of a single plugin. If it has no plugin, the error wraps ErrNotCached. libcni caches a
// list without the plugins that other files add to it; Runtime.CachedList adds them.
func ParseCached(config []byte) (*List, error) {
	list, single, err := parseCached(config)
	if err == nil && !single && len(list.Plugins) == 0 {
		err = fmt.Errorf("cached configuration of network %s has no plugins: %w", list.Name, ErrNotCached)
	}
	return list, err
}

func parseCached(config []byte) (list *List, single bool, err error) {
	if len(config) == 0 {
		return nil, false, ErrNotCached
	}
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(config, &keys); err != nil {
		return nil, false, spec.Errorf(spec.CodeDecoding, "cached configuration: %w", err)
	}
	object, err := spec.ParseObject(config)
	if err != nil {
		return nil, false, spec.Errorf(spec.CodeDecoding, "cached configuration: %w", err)
	}
	_, isList := keys["plugins"] // libcni ignores the case of a plugin's keys, but not of a list's
	if _, single = object.Get("type"); single && !isList {
		list, err = ParseSingle(config)
	} else {
		single = false
		list, err = ParseList(config)
	}
	if err != nil {
		return nil, false, fmt.Errorf("cached configuration: %w", err)
	}
	return list, single, nil
}

// CachedList returns the list with which an attachment was made. To a list that may have had plugins from other
// files, it adds those that the directory of the network has now. If the cache does not say which plugins
// there were, the error wraps ErrNotCached.
func (rt *Runtime) CachedList(c *Cached) (*List, error) {
	list, single, err := parseCached(c.Config)
	if err != nil {
		return nil, err
	}
	if list.Name != c.Network {
		return nil, fmt.Errorf("cached configuration is that of network %s: %w", list.Name, ErrNotCached)
	}
	if !single && !list.LoadOnlyInlinedPlugins {
		if err := list.addFiles(filepath.Join(rt.confDir, list.Name)); err != nil {
			return nil, err
		}
	}
	if len(list.Plugins) == 0 {
		return nil, fmt.Errorf("cached configuration of network %s has no plugins, and other files have none: %w", list.Name, ErrNotCached)
	}
	return list, nil
}
