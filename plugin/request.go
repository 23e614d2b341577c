// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/patchbay-net/patchbay/internal/lightjson"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/spec"
)

// OwnerKey is the owner key of an attachment: a hash of its network, container and interface, which every object of it
// carries (docs/ownership.md).
type OwnerKey = owner.Key

// Request is one call of a plugin. It is valid until the call returns.
type Request struct {
	*spec.Call
	Plugin  *Plugin
	Network string   // name of the network
	Version string   // cniVersion of the configuration, of the result and of prevResult
	Owner   OwnerKey // owner key of all objects of the attachment; empty for GC and STATUS
	Head    *spec.Conf
	Session *Session

	// InList is what the list adds to the configuration. Unless a list is being validated, InList is
	// nil.
	InList *InList

	conf    any // returned by Conf
	confErr error

	undo   undoStack
	prev   *spec.Result
	listed time.Time
	spared []spec.AttachmentKey // whose addresses a GC keeps

	everyones bool // returned by Everyones
}

// Loader is a configuration with its own rules. Load sets what the decoded configuration leaves
// out, or returns an error.
type Loader interface{ Load(*Request) error }

// Conf returns the configuration. Conf decodes it at the first call. For ADD, CHECK and
// STATUS, the SDK refuses an invalid configuration before it calls the plugin. For DEL and GC,
// Conf returns the error together with what could be read.
func (r *Request) Conf() (any, error) {
	if r.conf != nil || r.Plugin.Conf == nil {
		return r.conf, r.confErr
	}
	r.conf = r.Plugin.Conf()
	r.confErr = r.Decode(r.conf)
	if l, ok := r.conf.(Loader); ok && r.confErr == nil {
		r.confErr = l.Load(r)
	}
	return r.conf, r.confErr
}

// ConfOf returns the configuration in the type that Plugin.Conf returns, without the error.
func ConfOf[C any](r *Request) *C {
	c, _ := r.Conf()
	return c.(*C)
}

// validate returns the error that ADD would return for the configuration.
func (r *Request) validate() error {
	if _, err := r.Conf(); err != nil || r.Plugin.Validate == nil {
		return err
	}
	return r.Plugin.Validate(r)
}

// Decode reads the configuration into v. The case of keys does not matter, and unknown keys
// are ignored.
func (r *Request) Decode(v any) error {
	if err := lightjson.Unmarshal(r.Config, v); err != nil {
		return spec.Errorf(spec.CodeDecoding, "failed to load netconf: %w", err)
	}
	return nil
}

// Prev returns the previous result. If there is none, Prev returns nil. The plugin may change the
// result.
func (r *Request) Prev() *spec.Result { return r.prev }

// CNIArgs returns the pairs in CNI_ARGS.
func (r *Request) CNIArgs() ([]spec.Arg, error) { return spec.ParseArgs(r.Args) }

// Undo pushes a step that reverts the last change. If the ADD fails, the steps run in reverse
// order. If a step fails, the other steps still run.
func (r *Request) Undo(fn func(context.Context) error) { r.undo.push(fn) }

// Step names the next change. Tests let an ADD fail at each step and check that nothing is left
// behind.
func (r *Request) Step(name string) error { return r.Session.step(name) }

// undoTime limits the undo steps of one failed ADD.
const undoTime = 20 * time.Second

type undoStack []func(context.Context) error

func (u *undoStack) push(fn func(context.Context) error) { *u = append(*u, fn) }

// run runs every step, even if ctx is already cancelled.
func (u *undoStack) run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	var errs []error
	for i := len(*u) - 1; i >= 0; i-- {
		errs = append(errs, (*u)[i](ctx))
	}
	*u = nil
	return errors.Join(errs...)
}

// CheckNetNS returns an error if the namespace is missing (ADD, CHECK), or if it is the namespace
// of this process. For a DEL, the namespace of this process counts as gone, because a path in
// /proc leads there after the kernel used a process id again. The SDK calls CheckNetNS before
// every plugin except an IPAM plugin. An IPAM plugin that works in the namespace must call it
// itself. For each path, a session asks the kernel only once.
func (r *Request) CheckNetNS() error {
	if !r.PerContainer() || r.NetNS == "" {
		return nil
	}
	same, err := r.Session.isOwnNetNS(r.NetNS)
	switch {
	case err != nil && r.Verb == spec.Del:
		return nil // the namespace may be missing, and no error may stop a DEL
	case err != nil:
		return spec.Errorf(spec.CodeInvalidNetNS, "failed to open netns %q: %w", r.NetNS, err)
	case same && !r.NetNSOverride && r.Verb == spec.Del:
		call := *r.Call
		call.NetNS = ""
		r.Call = &call
	case same && !r.NetNSOverride:
		return spec.Errorf(spec.CodeInvalidNetNS, "plugin's netns and netns from CNI_NETNS should not be the same").
			WithDetails("CNI_NETNS %s is the namespace the plugin runs in; set CNI_NETNS_OVERRIDE=1 to allow it", r.NetNS)
	}
	return nil
}

// Valid tells a GC which attachments to keep. If the request has no list of valid attachments,
// ok is false and keep always returns true.
func (r *Request) Valid() (keep func(containerID, ifName string) bool, ok bool) {
	list, ok := r.Head.Valid()
	set := make(map[spec.AttachmentKey]bool, len(list))
	for _, a := range list {
		set[a] = true
	}
	return func(id, ifName string) bool { return !ok || set[spec.AttachmentKey{ContainerID: id, IfName: ifName}] }, ok
}

// Listed returns the time at which the GC's caller began its list of valid attachments, by the
// clock that dates files. Objects with a later date are not on the list, and the GC must keep
// them. A runtime that does not send this time runs no ADD during a GC (SPEC.md, "GC"). For such
// a runtime, Listed returns the time at which the first plugin was called.
func (r *Request) Listed() time.Time { return r.listed }

// String describes the call for logs, without the configuration.
func (r *Request) String() string {
	if !r.PerContainer() {
		return fmt.Sprintf("%s %s %s", r.Verb, r.Head.Type, r.Network)
	}
	return fmt.Sprintf("%s %s %s/%s", r.Verb, r.Network, r.ContainerID, r.IfName)
}

// InList is what a list adds to a plugin's configuration.
type InList struct {
	First   bool            // no plugin comes before this one in the list
	Main    string          // name of the plugin before this one that makes the interface; empty unless it is one of ours
	Types   []string        // types of the list's plugins, in order
	Granted map[string]bool // capabilities that the plugin declares and a runtime may give
	Answers []*spec.Result  // answers that the IPAM plugin of Main could give
}

// Validate lets a plugin of this process check its configuration in a list, for any version.
// doubts describes valid settings that are surely mistakes. If the plugin belongs to another
// program, Validate only checks whether that program exists.
func (s *Session) Validate(pluginType string, c *spec.Call, in InList) (doubts []string, err error) {
	r, err := s.judged(pluginType, c, in)
	if err != nil || r == nil {
		return nil, err
	}
	if err := cmp.Or(r.validate(), r.expressible()); err != nil {
		return nil, err
	}
	if r.Plugin.Warnings != nil {
		doubts = r.Plugin.Warnings(r)
	}
	return doubts, nil
}

// judged returns the request with which a plugin of this process checks a configuration. If the
// plugin belongs to another program, judged returns nil.
func (s *Session) judged(pluginType string, c *spec.Call, in InList) (*Request, error) {
	p, _, err := s.resolve(pluginType, c)
	if err != nil || p == nil {
		return nil, err
	}
	head, err := spec.ParseConf(c.Config)
	if err != nil {
		return nil, err
	}
	call := *c
	call.Verb = spec.Status
	return &Request{Call: &call, Plugin: p, Network: head.Name, Version: head.CNIVersion, Head: head, Session: s, InList: &in}, nil
}

// Samples returns the answers that the configuration's IPAM plugin could give (Plugin.Samples)
// while a list is validated. If that plugin belongs to another program, there are none.
func (r *Request) Samples() []*spec.Result {
	if r.InList == nil || r.Head.IPAM.Type == "" {
		return nil
	}
	of, err := r.Session.judged(r.Head.IPAM.Type, r.Call, *r.InList)
	if err != nil || of == nil || of.Plugin.Samples == nil {
		return nil
	}
	return of.Plugin.Samples(of)
}

// Own returns the plugin of this process with this type. If the plugin belongs to another program
// or is missing, Own returns nil.
func (s *Session) Own(pluginType string, c *spec.Call) *Plugin {
	p, _, _ := s.resolve(pluginType, c)
	return p
}

// KindWord describes a Go type in JSON's words.
func KindWord(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer:
		return KindWord(t.Elem())
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "a whole number from 0"
	}
	return "a number"
}
