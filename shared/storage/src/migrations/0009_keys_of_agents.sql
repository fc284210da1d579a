-- A gateway's key may be for one agent: it opens that agent's sessions and no others.
alter table api_key
    add column agent_id uuid check (agent_id is null or role = 'gateway'),
    add foreign key (account_id, agent_id) references agent;
