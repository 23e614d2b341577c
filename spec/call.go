// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"encoding/json"
	"os"
	"strings"

	"github.com/patchbay-net/patchbay/internal/lightjson"
)

// Verb is the value of CNI_COMMAND.
type Verb string

// These are the verbs of version 1.1.0.
const (
	Add     Verb = "ADD"
	Del     Verb = "DEL"
	Check   Verb = "CHECK"
	GC      Verb = "GC"
	Status  Verb = "STATUS"
	Version Verb = "VERSION"
)

// Call is one call of a plugin: the environment and the standard input. A runtime writes the
// environment with Environ, and a plugin reads it with ParseEnviron. A caller in the same process
// passes the Call itself.
type Call struct {
	Verb        Verb
	ContainerID string
	NetNS       string // path of the container's namespace; may be empty for DEL
	IfName      string
	Args        string   // CNI_ARGS, "K=V;K=V"
	Path        []string // directories of CNI_PATH

	// NetNSOverride says that CNI_NETNS may be the namespace in which the plugin itself runs
	// (CNI_NETNS_OVERRIDE in libcni).
	NetNSOverride bool

	// TraceParent, TraceState and Baggage are a W3C trace context. The plugin gets them unchanged
	// (cni#1173).
	TraceParent, TraceState, Baggage string

	Config []byte // standard input
}

// Environ returns the CNI variables of c as K=V. Environ lists empty variables too. Otherwise the
// plugin would inherit the caller's values of those variables. It leaves out CNI_NETNS_OVERRIDE and the trace
// context if they are not set; the program that starts a plugin removes them from the environment that it inherits.
func (c *Call) Environ() []string {
	env := []string{
		"CNI_COMMAND=" + string(c.Verb),
		"CNI_CONTAINERID=" + c.ContainerID,
		"CNI_NETNS=" + c.NetNS,
		"CNI_IFNAME=" + c.IfName,
		"CNI_ARGS=" + c.Args,
		"CNI_PATH=" + strings.Join(c.Path, string(os.PathListSeparator)),
	}
	if c.NetNSOverride {
		env = append(env, "CNI_NETNS_OVERRIDE=1")
	}
	for _, kv := range [][2]string{
		{"TRACEPARENT", c.TraceParent}, {"TRACESTATE", c.TraceState}, {"BAGGAGE", c.Baggage},
	} {
		if kv[1] != "" {
			env = append(env, kv[0]+"="+kv[1])
		}
	}
	return env
}

// ParseEnviron reads a call from an environment. ParseEnviron returns an error if a variable that
// the verb needs is missing, or if an id or interface name is malformed. ParseEnviron leaves Config
// empty. The error texts are the same as in skel, the plugin library of containernetworking/cni.
func ParseEnviron(getenv func(string) string) (*Call, error) {
	c := &Call{
		Verb:        Verb(getenv("CNI_COMMAND")),
		ContainerID: getenv("CNI_CONTAINERID"),
		NetNS:       getenv("CNI_NETNS"),
		IfName:      getenv("CNI_IFNAME"),
		Args:        getenv("CNI_ARGS"),
		TraceParent: getenv("TRACEPARENT"),
		TraceState:  getenv("TRACESTATE"),
		Baggage:     getenv("BAGGAGE"),
	}
	c.NetNSOverride = NetNSOverride(getenv)
	for _, dir := range strings.Split(getenv("CNI_PATH"), string(os.PathListSeparator)) {
		if dir != "" {
			c.Path = append(c.Path, dir)
		}
	}
	return c, c.Validate()
}

// NetNSOverride reads CNI_NETNS_OVERRIDE, libcni's extension, from the environment of a plugin or of a runtime, whose
// plugins inherit it (see Call.NetNSOverride).
func NetNSOverride(getenv func(string) string) bool {
	text := getenv("CNI_NETNS_OVERRIDE")
	return text == "1" || strings.EqualFold(text, "true")
}

// Validate returns an error if a variable that the verb needs is missing.
func (c *Call) Validate() error {
	switch c.Verb {
	case Add, Del, Check, GC, Status, Version:
	case "":
		return Errorf(CodeInvalidEnvironment, "required env variables [CNI_COMMAND] missing")
	default:
		return Errorf(CodeInvalidEnvironment, "unknown CNI_COMMAND: %.40s", string(c.Verb))
	}
	if missing := c.missing(); len(missing) > 0 {
		return Errorf(CodeInvalidEnvironment, "required env variables [%s] missing", strings.Join(missing, ","))
	}
	if !c.PerContainer() {
		return nil
	}
	if err := ValidateContainerID(c.ContainerID); err != nil {
		return err
	}
	return ValidateIfName(c.IfName)
}

// PerContainer reports whether the verb concerns one attachment (ADD, DEL, CHECK).
func (c *Call) PerContainer() bool { return c.Verb == Add || c.Verb == Del || c.Verb == Check }

func (c *Call) missing() (names []string) {
	need := func(name string, present bool) {
		if !present {
			names = append(names, name)
		}
	}
	if c.PerContainer() {
		need("CNI_CONTAINERID", c.ContainerID != "")
		need("CNI_NETNS", c.NetNS != "" || c.Verb == Del)
		need("CNI_IFNAME", c.IfName != "")
	}
	need("CNI_PATH", len(c.Path) > 0 || c.Verb == Version)
	return names
}

// Arg is one "K=V" pair of CNI_ARGS.
type Arg struct{ Key, Value string }

// ParseArgs splits CNI_ARGS. Like the reference, it refuses a pair that does not have exactly one
// '='. ParseArgs accepts every key, with or without IgnoreUnknown, because plugins ignore keys
// that they do not know.
func ParseArgs(s string) ([]Arg, error) {
	if s == "" {
		return nil, nil
	}
	var args []Arg
	for _, pair := range strings.Split(s, ";") {
		k, v, ok := strings.Cut(pair, "=")
		if !ok || strings.Contains(v, "=") {
			return nil, Errorf(CodeInvalidEnvironment, "ARGS: invalid pair %.200q", pair)
		}
		args = append(args, Arg{k, v})
	}
	return args, nil
}

// Pod returns "namespace/name" of the Kubernetes pod that CNI_ARGS names (K8S_POD_NAMESPACE,
// K8S_POD_NAME). Pod returns "" if they name none, or if a value is not a valid name.
func Pod(args []Arg) string {
	namespace, _ := LookupArg(args, "K8S_POD_NAMESPACE")
	name, _ := LookupArg(args, "K8S_POD_NAME")
	if !isDNSName(namespace) || !isDNSName(name) {
		return ""
	}
	return namespace + "/" + name
}

// isDNSName reports whether s is a valid name of a Kubernetes object (RFC 1123).
func isDNSName(s string) bool {
	const others = "abcdefghijklmnopqrstuvwxyz0123456789.-"
	return s != "" && len(s) <= 253 && strings.Trim(s, others) == "" && strings.Trim(s, ".-") == s
}

// LookupArg returns the last value of key in CNI_ARGS. The case of the key matters.
func LookupArg(args []Arg, key string) (value string, ok bool) {
	for _, a := range args {
		if a.Key == key {
			value, ok = a.Value, true
		}
	}
	return value, ok
}

// Conf is the part of a plugin's configuration that the protocol defines. The case of keys
// does not matter, as in encoding/json. Unknown keys are ignored.
type Conf struct {
	CNIVersion string `json:"cniVersion"`
	Name       string `json:"name"`
	Type       string `json:"type"`

	// PrevResult is the raw previous result. An ADD gets the result of the plugin that ran before
	// it. CHECK and DEL get the result of the whole chain.
	PrevResult json.RawMessage `json:"prevResult"`

	IPAM struct {
		Type string `json:"type"`
	} `json:"ipam"`

	// ValidAttachments lists the attachments that a GC must keep. Version 1.1.0 of the specification
	// calls the key cni.dev/attachments; the specification's main branch calls it
	// cni.dev/valid-attachments. We write and read both keys.
	ValidAttachments validAttachments `json:"cni.dev/valid-attachments"`
	OldAttachments   validAttachments `json:"cni.dev/attachments"`
}

// validAttachments is a list that may be absent. A JSON null counts as an empty list, because
// libcni writes null for a runtime that has no container left.
type validAttachments struct {
	list  []AttachmentKey
	named bool
}

// UnmarshalJSON reads a list. encoding/json calls it for a null too.
func (a *validAttachments) UnmarshalJSON(data []byte) error {
	a.named = true
	return lightjson.Unmarshal(data, &a.list)
}

// ParseConf decodes the protocol's part of a plugin configuration.
func ParseConf(data []byte) (*Conf, error) {
	c := new(Conf)
	if err := lightjson.Unmarshal(data, c); err != nil {
		return nil, Errorf(CodeDecoding, "failed to load netconf: %w", err)
	}
	if c.CNIVersion == "" {
		c.CNIVersion = Legacy
	}
	return c, nil
}

// Valid returns the attachments that a GC must keep. If the request has no list, ok is false, and
// the GC must not remove anything on the ground that it is not listed.
func (c *Conf) Valid() (valid []AttachmentKey, ok bool) {
	if c.ValidAttachments.named {
		return c.ValidAttachments.list, true
	}
	return c.OldAttachments.list, c.OldAttachments.named
}

// WithPrevResult returns config with prev as its prevResult, converted to the configuration's
// version. If prev is nil, it returns config unchanged.
func WithPrevResult(config []byte, prev *Result) ([]byte, error) {
	if prev == nil {
		return config, nil
	}
	head, err := ParseConf(config)
	if err != nil {
		return nil, err
	}
	conf, err := ParseObject(config)
	if err != nil {
		return nil, Errorf(CodeDecoding, "failed to load netconf: %w", err)
	}
	data, err := prev.Encode(head.CNIVersion)
	if err != nil {
		return nil, err
	}
	if err := conf.Set("prevResult", json.RawMessage(data)); err != nil {
		return nil, err
	}
	return conf.JSON()
}
