// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/jessevdk/go-flags"

	"github.com/patchbay-net/patchbay/internal/atomicfile"
)

// serviceFile is the EnvironmentFile of patchbay-hosts.service. Who types a command
// means the store of the agent that runs.
const serviceFile = "/etc/patchbay/hosts.env"

// service is what the agent is started with, as far as subcommands need it.
type service struct {
	Store   string `long:"store"`
	ConfDir string `long:"conf-dir"`
}

// readService reads the file. One that is missing says nothing; one that may not
// be read is an error, as another store would look empty.
func readService(path string) (s service, err error) {
	data, err := atomicfile.ReadConf(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return s, fmt.Errorf("find the store of this host: %w: say which by --store", err)
	}
	vars := readEnv(data)
	p := flags.NewParser(&s, flags.IgnoreUnknown)
	if _, err := p.ParseArgs(longFlags(strings.Fields(vars["PATCHBAY_HOSTS_OPTIONS"]))); err != nil { // systemd splits so, too
		return s, fmt.Errorf("%s: read PATCHBAY_HOSTS_OPTIONS: %w", path, err)
	}
	s.Store = cmp.Or(s.Store, vars["PATCHBAY_STORE"])
	return s, nil
}

// readEnv reads what systemd.exec(5) takes from an EnvironmentFile: lines of
// KEY=VALUE, values in quotes or not, comments after # and ;.
func readEnv(data []byte) map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(string(bytes.ReplaceAll(data, []byte("\\\n"), nil))) {
		line = strings.TrimSpace(line)
		key, value, ok := strings.Cut(line, "=")
		if !ok || line[0] == '#' || line[0] == ';' {
			continue
		}
		value = strings.TrimSpace(value)
		if n := len(value); n > 1 && (value[0] == '"' || value[0] == '\'') && value[n-1] == value[0] {
			value = value[1 : n-1]
		}
		out[strings.TrimSpace(key)] = value
	}
	return out
}
