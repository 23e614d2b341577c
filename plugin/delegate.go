// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"sync"

	"github.com/patchbay-net/patchbay/invoke"
	"github.com/patchbay-net/patchbay/spec"
)

// IPAMAdd asks the configuration's IPAM plugin for addresses. It then pushes their release to the
// undo stack. If the plugin refuses because the attachment already has addresses, IPAMAdd pushes
// nothing: those addresses must stay.
func (r *Request) IPAMAdd(ctx context.Context) (*spec.Result, error) {
	if err := r.Step("ipam"); err != nil {
		return nil, err
	}
	if r.Head.IPAM.Type == "" {
		return nil, spec.Invalid("no plugin name provided")
	}
	result, err := r.Session.Add(ctx, r.Head.IPAM.Type, r.Call, nil)
	if (err == nil || errors.Is(err, ErrResult)) && r.Session.Dry == nil {
		r.Undo(func(ctx context.Context) error { return r.IPAM(ctx, spec.Del) })
	}
	if err != nil {
		return nil, err
	}
	if err := CheckPrefixes(result); err != nil {
		return nil, err
	}
	if r.Session.Dry == nil {
		err = r.Session.tellReserved(ctx, result)
	}
	return result, err
}

// IPAM calls another verb of the IPAM plugin with the configuration and environment of this
// request (SPEC.md section 4). If the configuration has no IPAM plugin, IPAM does nothing.
func (r *Request) IPAM(ctx context.Context, verb spec.Verb) error {
	if r.Head.IPAM.Type == "" {
		return nil
	}
	call := *r.Call
	call.Verb = verb
	if verb == spec.GC {
		config, all, err := r.Sparing()
		if all || err != nil {
			return err
		}
		call.Config = config
	}
	return r.Session.Do(ctx, r.Head.IPAM.Type, &call)
}

// Spare keeps the addresses of an attachment in this GC, because the plugin could not remove all that leads to
// them. If the attachment has no name, all addresses stay.
func (r *Request) Spare(a spec.AttachmentKey) {
	if !slices.Contains(r.spared, a) {
		r.spared = append(r.spared, a)
	}
}

// Spared returns the attachments that Spare was called with.
func (r *Request) Spared() []spec.AttachmentKey { return r.spared }

// Everyones reports whether a GC may also remove attachments whose namespaces exist and that other
// runtimes than its caller made. The caller then has listed those of all runtimes, or an operator asked for it.
func (r *Request) Everyones() bool { return r.everyones }

// Sparing returns the configuration of a GC with the spared attachments among the valid ones. If all
// addresses stay, all is true.
func (r *Request) Sparing() (config []byte, all bool, err error) {
	if len(r.spared) == 0 {
		return r.Config, false, nil
	}
	if slices.Contains(r.spared, spec.AttachmentKey{}) {
		return nil, true, nil
	}
	config, err = r.sparing()
	return config, false, err
}

func (r *Request) sparing() ([]byte, error) {
	valid, _ := r.Head.Valid()
	return withValid(r.Config, slices.Concat(valid, r.spared))
}

// IgnoreGone returns nil if err is one of the errors in gone. DEL uses it, because for a DEL a
// missing object counts as deleted.
func IgnoreGone(err error, gone ...error) error {
	for _, g := range gone {
		if errors.Is(err, g) {
			return nil
		}
	}
	return err
}

// shortestPrefix is the prefix length of the largest private networks, 10.0.0.0/8 and
// fd00::/8.
const shortestPrefix = 8

// CheckPrefix returns an error if the prefix of a container's address cannot be its network. A
// prefix of length 0, for example, contains every host. With it the firewall would accept traffic
// of every host and masquerade none.
func CheckPrefix(address netip.Prefix) error {
	if address.Bits() >= shortestPrefix {
		return nil
	}
	return spec.Invalid("address %s: a prefix of %d bits cannot be a container's network (at least %d)",
		address, address.Bits(), shortestPrefix).WithDetails("give the address with the prefix length of its network, or %s/%d alone",
		address.Addr(), address.Addr().BitLen())
}

// CheckPrefixes applies CheckPrefix to each address in a result.
func CheckPrefixes(result *spec.Result) error {
	if result == nil {
		return nil
	}
	for _, ip := range result.IPs {
		if err := CheckPrefix(ip.Address); err != nil {
			return err
		}
	}
	return nil
}

// CheckRoutes returns an error for a route without destination. The reference passes such a route
// on in a form that no caller can read. CheckRoutes writes IPv4 gateways that are written as IPv6 as
// IPv4.
func CheckRoutes(routes []spec.Route) error {
	spec.UnmapRoutes(routes)
	for i, r := range routes {
		if !r.Dst.IsValid() {
			return spec.Invalid("invalid route %d: no dst", i)
		}
	}
	return nil
}

// CheckFamilies returns an error if the version of the request cannot express so many
// addresses of a family.
func (r *Request) CheckFamilies(v4, v6 int) error {
	if (v4 > 1 || v6 > 1) && !spec.AtLeast(r.Version, "0.3.0") {
		return spec.Invalid("CNI version %v does not support more than 1 address per family", r.Version)
	}
	return nil
}

// Invoke calls a plugin. If CNI_PATH leads to this program, Invoke calls the plugin within this
// process. If CNI_PATH leads to another program, Invoke executes it: a program that the operator
// installed has priority.
func (s *Session) Invoke(ctx context.Context, pluginType string, c *spec.Call) ([]byte, error) {
	return s.invoke(ctx, pluginType, c, false)
}

// invoke does the work of Invoke. For the request of a runtime, outermost is true; for a delegate
// it is false.
func (s *Session) invoke(ctx context.Context, pluginType string, c *spec.Call, outermost bool) (out []byte, err error) {
	p, err := s.start(pluginType, c, func(path string) error {
		out, err = s.exec().Run(ctx, path, c)
		return err
	})
	if err != nil || p == nil {
		return out, err
	}
	if ctx, err = deeper(ctx, pluginType); err != nil {
		return nil, tooDeep(c, err)
	}
	return serve(ctx, p, c, s, outermost)
}

// Do works like Invoke for a verb without an answer, such as DEL.
func (s *Session) Do(ctx context.Context, pluginType string, c *spec.Call) error {
	p, err := s.start(pluginType, c, func(path string) error {
		_, err := s.exec().Run(ctx, path, c)
		return err
	})
	if err != nil || p == nil {
		return err
	}
	if ctx, err = deeper(ctx, pluginType); err != nil {
		return tooDeep(c, err)
	}
	return serveDo(ctx, p, c, s)
}

// Add works like Invoke for an ADD. prev is the previous result. If prev is nil, the plugin uses
// the one in the configuration, if any. Within this process neither prev nor the result is
// encoded as JSON. The plugin may change prev.
func (s *Session) Add(ctx context.Context, pluginType string, c *spec.Call, prev *spec.Result) (result *spec.Result, err error) {
	p, err := s.start(pluginType, c, func(path string) error {
		result, err = s.addBy(ctx, path, c, prev)
		return err
	})
	if err != nil || p == nil {
		return result, err
	}
	if ctx, err = deeper(ctx, pluginType); err != nil {
		return nil, err
	}
	return serveAdd(ctx, p, c, prev, s)
}

func (s *Session) exec() *invoke.Exec { return &invoke.Exec{Stderr: s.Stderr, Base: s.Env} }

// addBy runs an ADD in another program.
func (s *Session) addBy(ctx context.Context, path string, c *spec.Call, prev *spec.Result) (result *spec.Result, err error) {
	call := *c
	if call.Config, err = spec.WithPrevResult(c.Config, prev); err != nil {
		return nil, err
	}
	out, err := s.exec().Run(ctx, path, &call)
	if err != nil {
		return nil, err
	}
	head, err := spec.ParseConf(c.Config)
	if err != nil {
		return nil, err
	}
	result, err = spec.ParseResult(out, head.CNIVersion)
	if err != nil {
		return nil, fmt.Errorf("%w of %s: %w", ErrResult, path, err)
	}
	return result, nil
}

// startTries is how often start looks for a program again after the program vanished before its
// start.
const startTries = 4

// start finds a plugin. If the plugin is in this process, start returns it. Otherwise start calls
// run with the path of the program. An installer may remove the program before run starts it.
// Then start looks again, and this process may have the plugin by then.
func (s *Session) start(pluginType string, c *spec.Call, run func(path string) error) (p *Plugin, err error) {
	for range startTries {
		p, path, rerr := s.resolve(pluginType, c)
		if rerr != nil || p != nil {
			return p, rerr
		}
		if err = run(path); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return nil, err
}

// maxDepth limits how deep plugins call each other. Real configurations stay below it: a list, a
// wrapper, an interface plugin and an IPAM plugin make four.
const maxDepth = 8

type depthKey struct{}

// deeper counts how deep plugins of this process call each other, and refuses the call after
// maxDepth. Without this limit, a plugin that is configured as its own IPAM plugin would call
// itself without end.
func deeper(ctx context.Context, pluginType string) (context.Context, error) {
	depth, _ := ctx.Value(depthKey{}).(int)
	if depth == maxDepth {
		return nil, spec.Invalid("plugin %s is called by plugins that it calls: is it its own IPAM plugin or delegate?", pluginType)
	}
	return context.WithValue(ctx, depthKey{}, depth+1), nil
}

// tooDeep returns no error for a DEL: the ADD stopped at this depth too, so nothing deeper exists.
func tooDeep(c *spec.Call, err error) error {
	if c.Verb == spec.Del {
		return nil
	}
	return err
}

// ErrResult means that the ADD of another program succeeded, but its output is not a result. The
// caller must roll such an ADD back with a DEL. An ADD that failed needs no DEL.
var ErrResult = errors.New("invalid result")

// ErrMute means that a dry run needs another program.
var ErrMute = errors.New("is another program and cannot be asked what it would do")

// resolve finds a plugin. It returns a plugin of this process, or the path of a program.
func (s *Session) resolve(pluginType string, c *spec.Call) (p *Plugin, path string, err error) {
	p = s.Plugin(pluginType)
	path, err = invoke.Find(pluginType, c.Path)
	switch {
	case p != nil && (errors.Is(err, invoke.ErrNotFound) || err == nil && isSelf(path)):
		return p, "", nil
	case err != nil:
		return nil, "", err
	case s.Dry != nil:
		return nil, "", fmt.Errorf("explain: plugin %s %w", path, ErrMute)
	}
	return nil, path, nil
}

// Plugin returns the plugin of this program with that name, or nil.
func (s *Session) Plugin(name string) *Plugin {
	for _, p := range s.Plugins {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// IsIPAM reports whether a plugin of this program assigns addresses.
func (s *Session) IsIPAM(name string) bool {
	p := s.Plugin(name)
	return p != nil && p.Kind == IPAM
}

// isSelf reports whether path is the running program. A file with the same inode is the running
// program. A file with another inode is the running program if it has the same build, because an
// installer may have copied it.
func isSelf(path string) bool {
	a, err := program.stat()
	if err != nil {
		return false
	}
	b, err := os.Stat(path)
	if err != nil {
		return false
	}
	return os.SameFile(a, b) || a.Size() == b.Size() && sameBuild(self, path)
}

const self = "/proc/self/exe"

// program is the running program's file.
var program selfFile

type selfFile struct {
	once sync.Once
	info os.FileInfo
	err  error
}

// stat asks once, because a chain of one process compares each of its plugins.
func (f *selfFile) stat() (os.FileInfo, error) {
	f.once.Do(func() { f.info, f.err = os.Stat(self) })
	return f.info, f.err
}

// IsSelf reports whether path is the running program. Commands that check an installation use it.
func IsSelf(path string) bool { return isSelf(path) }

// sameBuild compares the first page of two files of the same size. The linker puts the ELF header
// and Go's build id there.
func sameBuild(a, b string) bool {
	x, y := firstPage(a), firstPage(b)
	return x != nil && bytes.Contains(x, []byte("Go\x00\x00")) && bytes.Equal(x, y)
}

func firstPage(path string) []byte {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close() //nolint:errcheck // read only
	page := make([]byte, 4096)
	if _, err := io.ReadFull(f, page); err != nil {
		return nil
	}
	return page
}
