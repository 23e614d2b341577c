// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package results describes libcni's cache of results (libcni/api.go): where its files lie, how they are named and
// what is in them. A directory cni is that of all state of CNI, by default /var/lib/cni.
package results

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"path/filepath"

	"github.com/patchbay-net/patchbay/spec"
)

const name = "results"

// Dir returns the directory of the results.
func Dir(cni string) string { return filepath.Join(cni, name) }

// Nested returns the name of that directory below cni, as durable.MakeDir and CheckDir want it.
func Nested() string { return name }

// Pattern matches the files of a network (filepath.Glob). The first * stands for the container's id, the second for the
// interface. It also matches files of a network whose name begins with this one's, for example "net-b" for "net".
func Pattern(cni, network string) string {
	return filepath.Join(Dir(cni), Prefix(network)+"*"+separator+"*")
}

// Prefix is the beginning of the names of a network's files.
func Prefix(network string) string { return network + separator }

// separator joins the three parts of a name. Each part may contain it too.
const separator = "-"

// Name returns the name of an attachment's file. Two attachments can have the same name, so a reader also compares
// the names inside the file (File.IsOf).
func Name(network, containerID, ifName string) string {
	return Prefix(network) + containerID + separator + ifName
}

// Path returns the path of an attachment's file.
func Path(cni, network, containerID, ifName string) string {
	return filepath.Join(Dir(cni), Name(network, containerID, ifName))
}

// Temp returns the path of the temporary file for the file at path. The temporary file lies one directory above
// the results, so it is never read as a result. Its name is short even if the names of network
// and container are long.
func Temp(path string) string {
	sum := sha256.Sum256([]byte(filepath.Base(path)))
	return filepath.Join(filepath.Dir(filepath.Dir(path)), tempPrefix+hex.EncodeToString(sum[:8]))
}

const tempPrefix = ".result-"

// Temps returns the pattern (filepath.Glob) of all temporary files.
func Temps(cni string) string { return filepath.Join(cni, tempPrefix+"*") }

// kind is the value of "kind" that libcni writes.
const kind = "cniCacheV1"

// File is the content of a file.
type File struct {
	Kind         string          `json:"kind"` // set by Encode
	ContainerID  string          `json:"containerId"`
	Config       []byte          `json:"config"`
	IfName       string          `json:"ifName"`
	Network      string          `json:"networkName"`
	NetNS        string          `json:"netns,omitempty"`
	Args         [][2]string     `json:"cniArgs,omitempty"`
	Capabilities map[string]any  `json:"capabilityArgs,omitempty"`
	Result       json.RawMessage `json:"result,omitempty"`
}

// Encode returns the JSON of a file.
func (f File) Encode() ([]byte, error) {
	f.Kind = kind
	return json.Marshal(&f)
}

// Decode reads a file. If the file is of another kind, ok is false: libcni before 0.8 wrote the bare result.
func Decode(data []byte) (f File, ok bool, err error) {
	err = json.Unmarshal(data, &f)
	return f, err == nil && f.Kind == kind, err
}

// Place returns the path of the container's namespace, or "" if the file names none.
func (f *File) Place() string {
	if f.NetNS != "" || len(f.Result) == 0 {
		return f.NetNS
	}
	result, err := spec.ParseResult(f.Result, "")
	if err != nil {
		return ""
	}
	return Place("", f.IfName, result)
}

// Place returns the path of the container's namespace. An older libcni, as in containerd 1.6, does not cache it.
// Then the result names the namespace. result may be nil.
func Place(netNS, ifName string, result *spec.Result) string {
	if netNS != "" || result == nil {
		return netNS
	}
	if in := result.Inside(ifName); in != nil {
		return in.Sandbox
	}
	return ""
}

// IsOf reports whether the file is that of an attachment.
func (f *File) IsOf(network, containerID, ifName string) bool {
	return f.Network == network && f.ContainerID == containerID && f.IfName == ifName
}
